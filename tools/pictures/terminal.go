package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
)

// A recording is an asciicast of version 2: a header, then one event in each line.
type header struct {
	Version int    `json:"version"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Title   string `json:"title"`
}

// event is output ("o") of a terminal, and the seconds after which it came.
type event struct {
	after float64
	data  string
}

func (e event) MarshalJSON() ([]byte, error) {
	data := new(bytes.Buffer)
	encoder := json.NewEncoder(data)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e.data); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `[%.3f, "o", %s]`, e.after, bytes.TrimSpace(data.Bytes())), nil
}

func (e *event) UnmarshalJSON(line []byte) error {
	kind := ""
	fields := []any{&e.after, &kind, &e.data}
	if err := json.Unmarshal(line, &fields); err != nil {
		return err
	}
	if kind != "o" {
		return fmt.Errorf("event of kind %q", kind)
	}
	return nil
}

// read reads a recording.
func read(cast []byte) (h header, events []event, err error) {
	lines := bufio.NewScanner(bytes.NewReader(cast))
	for first := true; lines.Scan(); first = false {
		if first {
			err = json.Unmarshal(lines.Bytes(), &h)
		} else {
			var e event
			err = json.Unmarshal(lines.Bytes(), &e)
			events = append(events, e)
		}
		if err != nil {
			return h, nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
	}
	if h.Version != 2 {
		return h, nil, fmt.Errorf("version %d, want 2", h.Version)
	}
	return h, events, lines.Err()
}

// shown is one line on the terminal.
type shown struct {
	text       string
	begin, end float64 // when its first and its last character came, in seconds
}

// prompt is what the shell writes before a command.
const prompt = "$ "

// screen returns the lines that the events leave. The programs of the recording write plain text, so
// it knows no other control characters than the ends of lines.
func screen(events []event) (lines []shown, err error) {
	line := shown{}
	for _, e := range events {
		for _, r := range e.data {
			switch {
			case r == '\n':
				lines, line = append(lines, line), shown{}
			case r == '\r':
			case r < ' ':
				return nil, fmt.Errorf("%q has a control character", e.data)
			default:
				if line.text == "" {
					line.begin = e.after
				}
				line.text, line.end = line.text+string(r), e.after
			}
		}
	}
	if line.text != "" && line.text != prompt {
		lines = append(lines, line)
	}
	return lines, nil
}

// drawTerminal draws the recording. The first command and its output are there from the beginning,
// because a picture must never be empty. The other lines appear as they came. Readers who want no
// motion, and programs that know no animation, see all lines.
func drawTerminal(root string) (string, error) {
	cast, err := os.ReadFile(filepath.Join(root, "docs", "pictures", recording))
	if err != nil {
		return "", err
	}
	h, events, err := read(cast)
	if err != nil {
		return "", err
	}
	lines, err := screen(events)
	if err != nil {
		return "", err
	}
	const char, line, top, left = 7.25, 17, 52, 18
	width, height := int(float64(h.Width)*char)+2*left, len(lines)*line+top+10
	var text strings.Builder
	commands, start := 0, 0.0 // how many there were so far; when the second one came
	for i, l := range lines {
		if l.text == "" {
			continue
		}
		class, style := "o", fmt.Sprintf("animation-delay:%.2fs", l.begin-start)
		if strings.HasPrefix(l.text, prompt) {
			if commands++; commands == 2 {
				start = l.begin
			}
			// A command is typed: its line is uncovered key by key.
			class = "i"
			style = fmt.Sprintf("animation-delay:%.2fs;animation-duration:%.2fs;animation-timing-function:steps(%d)",
				l.begin-start, max(l.end-l.begin, 0.01), len(l.text))
		}
		if commands < 2 {
			style = "animation:none"
		}
		fmt.Fprintf(&text, `<text class="%s" style="%s" x="%d" y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs" xml:space="preserve">%s</text>`+"\n",
			class, style, left, top+i*line+4, float64(len([]rune(l.text)))*char, html.EscapeString(l.text))
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>%s</title>
<style>.bg{fill:#f6f8fa;stroke:#818b98}.bar{fill:#818b98}
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;white-space:pre;fill:#1f2328}
.i{font-weight:600;animation:type 1s both}.o{animation:appear .01s backwards}
@keyframes appear{from{opacity:0}}@keyframes type{from{clip-path:inset(0 100%% 0 0)}to{clip-path:inset(0 0 0 0)}}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117;stroke:#656c76}text{fill:#f0f6fc}}
@media (prefers-reduced-motion:reduce){text{animation:none!important}}</style>
<rect class="bg" x=".5" y=".5" width="%d" height="%d" rx="8"/>
<circle class="bar" cx="20" cy="18" r="5"/><circle class="bar" cx="38" cy="18" r="5"/><circle class="bar" cx="56" cy="18" r="5"/>
%s</svg>
`, width, height, html.EscapeString(h.Title), width-1, height-1, text.String()), nil
}
