package main

import (
	"fmt"
	"html"
	"strings"
)

// canvas is a picture under construction. Its colours are those of the reader's light or dark mode.
type canvas struct {
	width, height int
	title         string // for readers who do not see the picture
	below, above  strings.Builder
}

// style has the colours and fonts of all pictures. A box has one of the classes a to e.
const style = `svg{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.bg{fill:#fff}text{fill:#1f2328;font-size:12px}.h{font-weight:600;font-size:13px}.m{fill:#59636e;font-size:11.5px}
.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:10px;fill:#59636e}
.box{stroke-width:1.2}.a{fill:#f6f8fa;stroke:#818b98}.b{fill:#ddf4ff;stroke:#218bff}.c{fill:#dafbe1;stroke:#2da44e}
.d{fill:#fff1e5;stroke:#e16f24}.e{fill:#fbefff;stroke:#a475f9}.room{fill:none;stroke:#818b98;stroke-dasharray:5 4}
.line{fill:none;stroke:#59636e;stroke-width:1.3}.dash{stroke-dasharray:4 3}#head path{fill:#59636e}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}text{fill:#f0f6fc}.m,.mono{fill:#9198a1}
.a{fill:#151b23;stroke:#656c76}.b{fill:#121d2f;stroke:#388bfd}.c{fill:#12261e;stroke:#2ea043}
.d{fill:#221a19;stroke:#db6d28}.e{fill:#1f1a2e;stroke:#8957e5}.room{stroke:#656c76}
.line{stroke:#9198a1}#head path{fill:#9198a1}}`

// box is a rectangle with a heading and lines of text.
type box struct {
	x, y, w, h int
	class      string // the colour
	head       string
	lines      []string
	mono       []string // lines in a typewriter font, below the others
}

func (b box) midX() int   { return b.x + b.w/2 }
func (b box) midY() int   { return b.y + b.h/2 }
func (b box) right() int  { return b.x + b.w }
func (b box) bottom() int { return b.y + b.h }

// Heights of what a box contains, in pixels.
const (
	headHeight = 18
	lineHeight = 15
	monoHeight = 13
	boxPadding = 9
)

// contentHeight returns the height that the text of b needs.
func (b box) contentHeight() int {
	return headHeight + lineHeight*len(b.lines) + monoHeight*len(b.mono) + 2*boxPadding - 3
}

// around returns a box whose height is that of its text, with its middle at the height y.
func around(x, y, w int, class, head string, lines ...string) box {
	b := box{x: x, w: w, class: class, head: head, lines: lines}
	b.h = b.contentHeight()
	b.y = y - b.h/2
	return b
}

// box draws b, over all lines.
func (c *canvas) box(b box) {
	fmt.Fprintf(&c.above, `<rect class="box %s" x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n", b.class, b.x, b.y, b.w, b.h)
	y := b.y + boxPadding + 10
	c.text(b.x+10, y, "h", b.head)
	y += headHeight - 3
	for _, line := range b.lines {
		c.text(b.x+10, y, "m", line)
		y += lineHeight
	}
	for _, line := range b.mono {
		c.text(b.x+10, y, "mono", line)
		y += monoHeight
	}
}

// room draws a frame with a heading around other boxes.
func (c *canvas) room(b box) {
	fmt.Fprintf(&c.below, `<rect class="room" x="%d" y="%d" width="%d" height="%d" rx="10"/>`+"\n", b.x, b.y, b.w, b.h)
	c.text(b.x+12, b.y+19, "h", b.head)
}

// text writes one line that begins at x.
func (c *canvas) text(x, y int, class, line string) {
	fmt.Fprintf(&c.above, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, html.EscapeString(line))
}

// point is a corner of a line.
type point struct{ x, y int }

// arrow draws a line through the points, with a head at its end. The class may be dash.
func (c *canvas) arrow(class string, points ...point) {
	c.line(class, `marker-end="url(#head)"`, points)
}

// both draws an arrow with two heads.
func (c *canvas) both(points ...point) {
	c.line("", `marker-start="url(#head)" marker-end="url(#head)"`, points)
}

func (c *canvas) line(class, markers string, points []point) {
	var path strings.Builder
	for i, p := range points {
		fmt.Fprintf(&path, "%c%d %d", "ML"[min(i, 1)], p.x, p.y)
	}
	fmt.Fprintf(&c.below, `<path class="line %s" d="%s" %s/>`+"\n", class, path.String(), markers)
}

// svg returns the picture.
func (c *canvas) svg() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>%s</title>
<style>%s</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>
<rect class="bg" width="100%%" height="100%%" rx="8"/>
%s%s</svg>
`, c.width, c.height, html.EscapeString(c.title), style, c.below.String(), c.above.String())
}

// wrap breaks words into lines of at most width characters. A word that is longer has a line of its
// own.
func wrap(words []string, width int) (lines []string) {
	line := ""
	for _, word := range words {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
