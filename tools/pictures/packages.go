package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

const module = "github.com/execagent/execagent/"

// room is a group of packages that one box shows. A package belongs to the room with the longest
// prefix of its name.
type room struct {
	name     string
	about    []string
	class    string
	prefixes []string
	x, w     int // horizontal place of the box; its row determines the vertical place
	row      int
}

// rooms is the layout. Every import leads to a row further down.
var rooms = []room{
	{name: "harness", class: "b", x: 20, w: 240, row: 0, prefixes: []string{"harness"},
		about: []string{"what a harness adds to a client"}},
	{name: "programs", class: "e", x: 290, w: 690, row: 0, prefixes: []string{"cmd"},
		about: []string{"agent and registry: command lines, and wiring"}},
	{name: "client", class: "b", x: 20, w: 240, row: 1, prefixes: []string{"client"},
		about: []string{"sessions that survive connections"}},
	{name: "registry", class: "d", x: 290, w: 220, row: 1, prefixes: []string{"registry", "internal/registry"},
		about: []string{"who may meet whom"}},
	{name: "agent", class: "c", x: 540, w: 220, row: 1, prefixes: []string{"agent"},
		about: []string{"methods, sessions, what they own"}},
	{name: "helper", class: "c", x: 790, w: 190, row: 1, prefixes: []string{"helper"},
		about: []string{"a sandbox for any program"}},
	{name: "relay", class: "d", x: 20, w: 240, row: 2, prefixes: []string{"relay", "internal/relay", "auth", "internal/sigv4"},
		about: []string{"both ends of the relay; signing in"}},
	{name: "services of the agent", class: "c", x: 540, w: 220, row: 2,
		prefixes: []string{"internal/approval", "internal/egress", "internal/metrics", "internal/netproxy", "internal/profile"},
		about:    []string{"questions, proxies, counts"}},
	{name: "transport", class: "b", x: 20, w: 240, row: 3, prefixes: []string{"transport"},
		about: []string{"WebSocket, UNIX socket, stdio"}},
	{name: "enforcement", class: "c", x: 540, w: 440, row: 3, prefixes: []string{"internal/sandbox"},
		about: []string{"how a command, or a file request, is confined"}},
	{name: "services of the host", class: "a", x: 290, w: 220, row: 4,
		prefixes: []string{"internal/applypatch", "internal/discovery", "internal/filecopy", "internal/fswatch",
			"internal/hostenv", "internal/httpclient", "internal/sockets"},
		about: []string{"patches, copies, watches, HTTP"}},
	{name: "rules", class: "a", x: 540, w: 150, row: 4, prefixes: []string{"internal/execpolicy"},
		about: []string{"what may be executed"}},
	{name: "sandbox", class: "a", x: 712, w: 166, row: 4, prefixes: []string{"sandbox", "internal/sandbox/pathname"},
		about: []string{"policies as values"}},
	{name: "procs", class: "a", x: 900, w: 80, row: 4, prefixes: []string{"procs"},
		about: []string{"processes"}},
	{name: "the wire", class: "b", x: 20, w: 240, row: 5, prefixes: []string{"protocol", "rpc"},
		about: []string{"messages; requests in their order"}},
	{name: "fsops", class: "a", x: 290, w: 220, row: 5, prefixes: []string{"fsops"},
		about: []string{"file operations"}},
	{name: "leaves", class: "a", x: 20, w: 960, row: 6, prefixes: []string{"internal"},
		about: []string{"the kernel, paths, secrets, bytes within bounds: they import nothing of the rooms above"}},
}

// detours are arrows that cannot be drawn straight, with the x of the gap in which they go down.
var detours = map[[2]string]int{{"harness", "services of the host"}: 275}

// forTests are packages that only tests import.
var forTests = []string{"test", "conformance", "internal/contracttest", "internal/rpctest", "internal/registry/store/storetest", "internal/sandbox/sandboxtest",
	"harness/projection/internal/fakemcp"}

// within reports whether a package is a prefix or lies below it.
func within(name, prefix string) bool { return name == prefix || strings.HasPrefix(name, prefix+"/") }

// roomOf returns the number of the room that a package is in, -1 for none.
func roomOf(name string) int {
	found, longest := -1, ""
	for i, r := range rooms {
		for _, prefix := range r.prefixes {
			if within(name, prefix) && len(prefix) > len(longest) {
				found, longest = i, prefix
			}
		}
	}
	return found
}

// house has the packages and imports of the module, by rooms.
type house struct {
	packages [][]string // of each room
	imports  [][]bool   // imports[a][b]: room a imports room b
}

// list reads the output of go list.
func list(root string) (*house, error) {
	command := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles", "./...")
	command.Dir = root
	command.Env = append(command.Environ(), "GOOS=linux", "GOARCH=amd64", "GOWORK=off")
	out, err := command.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("go list: %s", exit.Stderr)
	} else if err != nil {
		return nil, err
	}
	h := &house{packages: make([][]string, len(rooms)), imports: make([][]bool, len(rooms))}
	for i := range h.imports {
		h.imports[i] = make([]bool, len(rooms))
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath       string
			Imports, GoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return h, h.check()
		} else if err != nil {
			return nil, err
		}
		if err := h.add(strings.TrimPrefix(p.ImportPath, module), p.Imports, len(p.GoFiles)); err != nil {
			return nil, err
		}
	}
}

// add adds one package.
func (h *house) add(name string, imports []string, files int) error {
	if files == 0 || slices.ContainsFunc(forTests, func(prefix string) bool { return within(name, prefix) }) {
		return nil
	}
	from := roomOf(name)
	if from < 0 {
		return fmt.Errorf("package %s is in no room: name its room in packages.go", name)
	}
	h.packages[from] = append(h.packages[from], name)
	for _, imported := range imports {
		if inside, ok := strings.CutPrefix(imported, module); ok {
			if to := roomOf(inside); to != from {
				h.imports[from][to] = true
			}
		}
	}
	return nil
}

// check compares the layout with the imports.
func (h *house) check() error {
	for from, all := range h.imports {
		if len(h.packages[from]) == 0 {
			return fmt.Errorf("room %s has no packages", rooms[from].name)
		}
		for to, does := range all {
			if does && rooms[from].row >= rooms[to].row {
				return fmt.Errorf("room %s imports %s, which does not stand below it", rooms[from].name, rooms[to].name)
			}
		}
	}
	return nil
}

// needs reports whether the picture has an arrow from one room to another: there is an import, and
// no way through a third room, which would show readers the same.
func (h *house) needs(from, to int) bool {
	if !h.imports[from][to] {
		return false
	}
	for over, does := range h.imports[from] {
		if does && over != to && h.reaches(over, to) {
			return false
		}
	}
	return true
}

func (h *house) reaches(from, to int) bool {
	for over, does := range h.imports[from] {
		if does && (over == to || h.reaches(over, to)) {
			return true
		}
	}
	return false
}

// short shortens the names of a room's packages: what lies below a prefix comes after it, and begins
// with a slash.
func short(prefixes, packages []string) (words []string) {
	for _, prefix := range prefixes {
		words = append(words, prefix)
		for _, name := range packages {
			if below, ok := strings.CutPrefix(name, prefix+"/"); ok {
				words = append(words, "/"+below)
			}
		}
	}
	return words
}

// boxes lays the rooms out, row by row.
func (h *house) boxes() []box {
	const top, gap = 44, 30
	all := make([]box, len(rooms))
	y := top
	for row := 0; ; row++ {
		height := 0
		for i, r := range rooms {
			if r.row != row {
				continue
			}
			width := (r.w - 16) * 10 / 61 // a character has 6.1 pixels
			all[i] = box{x: r.x, y: y, w: r.w, class: r.class, head: r.name, lines: r.about, mono: wrap(short(r.prefixes, h.packages[i]), width)}
			all[i].h = all[i].contentHeight()
			height = max(height, all[i].h)
		}
		if height == 0 {
			return all
		}
		y += height + gap
	}
}

func drawPackages(root string) (string, error) {
	h, err := list(root)
	if err != nil {
		return "", err
	}
	boxes := h.boxes()
	last := boxes[len(boxes)-1]
	c := &canvas{width: 1000, height: last.bottom() + 16, title: "The packages, in rooms, and the direction of their imports"}
	c.text(20, 26, "m", "An arrow is an import. Where a way through other rooms leads to the same room, the arrow is left out. Drawn from what go list says.")
	for from := range rooms {
		for to := range rooms {
			if h.needs(from, to) {
				c.arrow("", way(boxes[from], boxes[to])...)
			}
		}
	}
	for _, b := range boxes {
		c.box(b)
	}
	return c.svg(), nil
}

// way returns the corners of an arrow between two boxes.
func way(from, to box) []point {
	if gap, ok := detours[[2]string{from.head, to.head}]; ok {
		return []point{{from.right(), from.midY()}, {gap, from.midY()}, {gap, to.midY()}, {to.x, to.midY()}}
	}
	left, right := max(from.x, to.x), min(from.right(), to.right())
	if right-left > 20 {
		middle := (left + right) / 2
		return []point{{middle, from.bottom()}, {middle, to.y}}
	}
	// The corners lie in the gap over the row of the target.
	start, end := from.right()-24, to.midX()
	if from.x > to.x {
		start = from.x + 24
	}
	return []point{{start, from.bottom()}, {start, to.y - 15}, {end, to.y - 15}, {end, to.y}}
}
