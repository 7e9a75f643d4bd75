package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxText bounds the text of an answer of read_file, maxImage an image, and maxEdit a file that edit changes.
	maxText, maxImage, maxEdit = 64 << 10, 4 << 20, 8 << 20
	// maxCounted is how large a file may be whose lines are counted to the end.
	maxCounted = 16 << 20
	// maxDiff bounds the diff in an answer of edit.
	maxDiff = 16 << 10
	// around is how many lines a diff shows around a change.
	around = 3
	// sniff is how much of a file tells what it is.
	sniff    = 8 << 10
	maxBlock = 1 << 20
)

// path returns the absolute path of a name on the agent. With --root it refuses a path that leads out of all of them.
// That is for orderly models: a command could change a link in between, and only a sandbox is a boundary.
func (c *call) path(ctx context.Context, name string) (string, error) {
	if strings.ContainsRune(name, 0) || len(name) > 4096 {
		return "", errors.New("a path has no NUL and at most 4096 bytes")
	}
	full := below(c.agent.dir, name)
	if c.agent.roots == nil {
		return full, nil
	}
	real, err := c.resolve(ctx, full)
	if err != nil {
		return "", err
	}
	for _, root := range c.agent.roots {
		if real == root || strings.HasPrefix(real, strings.TrimSuffix(root, "/")+"/") {
			return full, nil
		}
	}
	return "", fmt.Errorf("%s is outside of the directories that agent mcp may use: %s", full, strings.Join(c.agent.roots, ", "))
}

// resolve follows the links of a path that need not exist.
func (c *call) resolve(ctx context.Context, full string) (string, error) {
	real, err := c.agent.files.CanonicalizeMissing(ctx, full)
	if _, old := errors.AsType[*client.UnsupportedError](err); !old {
		return real, err
	}
	if real, err = c.agent.files.Canonicalize(ctx, full); !errors.Is(err, fs.ErrNotExist) || full == "/" {
		return real, err
	}
	dir, err := c.resolve(ctx, path.Dir(full))
	if err != nil {
		return "", err
	}
	real = path.Join(dir, path.Base(full))
	// A link to a missing file does not exist for such an agent either, but writing follows it.
	if _, err := c.agent.files.StatWithoutLinks(ctx, real); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is a link to a file that does not exist, and this agent cannot tell where that is", full)
	}
	return real, nil
}

// readFile is the tool read_file.
func readFile(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
	var args struct {
		Path   string `json:"path"`
		Offset *int64 `json:"offset"`
		Limit  *int64 `json:"limit"`
	}
	if err := c.arguments(&args); err != nil {
		return nil, err
	}
	if args.Path == "" {
		return nil, errors.New("path is missing")
	}
	name, err := c.path(ctx, args.Path)
	if err != nil {
		return nil, err
	}
	info, err := c.agent.files.Stat(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDirectory:
		return nil, fmt.Errorf("%s is a directory: search without a pattern lists it", name)
	case !info.IsFile:
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	file, err := c.agent.files.Open(ctx, name, protocol.OpenRead)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	head := make([]byte, sniff)
	n, err := file.ReadAtContext(ctx, head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	head = head[:n]
	kind, _, _ := strings.Cut(http.DetectContentType(head), ";")
	switch {
	case bytes.IndexByte(head, 0) < 0: // text, also if it begins like an image: a false image ends a conversation
	case kind == "image/png" || kind == "image/jpeg" || kind == "image/gif" || kind == "image/webp":
		return c.image(ctx, name, kind)
	default:
		return nil, fmt.Errorf("%s is not text (%s, %d bytes): look at it with a command, such as xxd or file", name, kind, info.Size)
	}
	first := c.within("offset", args.Offset, 1, 1, 1<<40)
	limit := c.within("limit", args.Limit, 2000, 1, 1<<20)
	page, err := readLines(ctx, file, first, limit, int64(info.Size))
	if err != nil {
		return nil, err
	}
	if page.cut {
		page.text = program.Whole(page.text)
	}
	if !utf8.Valid(page.text) {
		c.note("the file is not UTF-8: U+FFFD stands for bytes that are not, and edit cannot find them; write_file would lose them")
	}
	data := struct {
		Text       string   `json:"text"`
		FirstLine  int64    `json:"first_line"`
		Lines      int64    `json:"lines"`
		TotalLines *int64   `json:"total_lines,omitempty"`
		Truncated  bool     `json:"truncated"`
		Notes      []string `json:"notes,omitempty"`
	}{text(page.text), first, page.lines, page.total, page.more, c.notes}
	var words strings.Builder
	words.WriteString(data.Text)
	if page.more {
		fmt.Fprintf(&words, "\n[%d lines from line %d on; offset %d reads on]\n", page.lines, first, first+page.lines)
	}
	if page.cut {
		fmt.Fprintf(&words, "[line %d is longer than this: a command such as cut -b reads the rest of it]\n", first+page.lines-1)
	}
	if page.lines == 0 && page.total != nil {
		fmt.Fprintf(&words, "[the file has %d lines]\n", *page.total)
	}
	addNotes(&words, c.notes)
	return answer(words.String(), data), nil
}

// page is a part of a text file.
type page struct {
	text  []byte
	lines int64
	total *int64 // lines of the file; nil: it is large
	more  bool   // something follows the text
	cut   bool   // the last line is longer than the answer
}

// readLines reads lines of a file, from the line first on.
func readLines(ctx context.Context, file *client.File, first, limit, size int64) (p page, err error) {
	line := int64(1) // of the next byte
	full := false
	last := byte('\n')
	block := make([]byte, maxBlock)
	for at := int64(0); ; {
		n, err := file.ReadAtContext(ctx, block, at)
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return p, err
		}
		at += int64(n)
		for rest := block[:n]; len(rest) > 0; {
			end := bytes.IndexByte(rest, '\n') + 1
			whole := end > 0
			if !whole {
				end = len(rest)
			}
			if line >= first && !full {
				switch room := maxText - len(p.text); {
				case line >= first+limit:
					full, p.more = true, true
				case end > room && p.lines > 0 && last == '\n':
					full, p.more = true, true
				default:
					if last == '\n' {
						p.lines++
					}
					if end > room {
						full, p.more, p.cut = true, true, true
					}
					p.text = append(p.text, rest[:min(end, room)]...)
				}
			}
			last = rest[end-1]
			rest = rest[end:]
			if whole {
				line++
			}
		}
		switch {
		case ended:
			total := line - 1
			if last != '\n' {
				total++
			}
			p.total = &total
			return p, nil
		case full && size > maxCounted:
			return p, nil
		}
	}
}

// image is the answer with an image.
func (c *call) image(ctx context.Context, name, kind string) (*mcp.CallToolResult, error) {
	data, err := c.content(ctx, name, maxImage)
	if err != nil {
		return nil, err
	}
	if len(data) > maxImage {
		return nil, fmt.Errorf("%s is larger than %d bytes, the most of an image in an answer: make it smaller with a command", name, maxImage)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: data, MIMEType: kind}}}, nil
}

// content returns the content of a file, or a byte more than most of it: the size that the agent says is not trusted,
// because the file may grow meanwhile.
func (c *call) content(ctx context.Context, name string, most int) ([]byte, error) {
	file, err := c.agent.files.Open(ctx, name, protocol.OpenRead)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var data []byte
	for len(data) <= most {
		block := make([]byte, min(maxBlock, most+1-len(data)))
		n, err := file.ReadAtContext(ctx, block, int64(len(data)))
		data = append(data, block[:n]...)
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return data, nil
}

// writeFile is the tool write_file.
func writeFile(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
	var args struct {
		Path    string  `json:"path"`
		Content *string `json:"content"`
		Parents *bool   `json:"create_parents"`
	}
	if err := c.arguments(&args); err != nil {
		return nil, err
	}
	if args.Path == "" || args.Content == nil {
		return nil, errors.New("path and content are needed")
	}
	name, err := c.path(ctx, args.Path)
	if err != nil {
		return nil, err
	}
	_, err = c.agent.files.Stat(ctx, name)
	created := errors.Is(err, fs.ErrNotExist)
	if err != nil && !created {
		return nil, err
	}
	if args.Parents == nil || *args.Parents {
		if err := c.agent.files.Mkdir(ctx, path.Dir(name), true); err != nil {
			return nil, err
		}
	}
	if err := c.replace(ctx, name, []byte(*args.Content)); err != nil {
		return nil, err
	}
	data := struct {
		Path    string `json:"path"`
		Bytes   int    `json:"bytes"`
		Created bool   `json:"created"`
	}{name, len(*args.Content), created}
	words := "replaced"
	if created {
		words = "created"
	}
	return answer(fmt.Sprintf("%s %s, %d bytes\n", words, name, data.Bytes), data), nil
}

// replace writes a file as a whole, where the agent can.
func (c *call) replace(ctx context.Context, name string, content []byte) error {
	options := client.WriteOptions{Atomic: c.agent.info.Capabilities.FSWriteOptions}
	return c.agent.files.WriteFileWith(ctx, name, content, options)
}

// editFile is the tool edit.
func editFile(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
	var args struct {
		Path  string  `json:"path"`
		Old   *string `json:"old"`
		New   *string `json:"new"`
		All   bool    `json:"replace_all"`
		Patch *string `json:"patch"`
	}
	if err := c.arguments(&args); err != nil {
		return nil, err
	}
	whole := args.Path != "" && args.Old != nil && args.New != nil
	if (args.Patch != nil) == whole || args.Patch != nil && (args.Path != "" || args.Old != nil || args.New != nil) {
		return nil, errors.New("give path, old and new, or else patch alone")
	}
	select {
	case c.editing <- struct{}{}:
		defer func() { <-c.editing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if args.Patch != nil {
		return c.patch(ctx, *args.Patch)
	}
	name, err := c.path(ctx, args.Path)
	if err != nil {
		return nil, err
	}
	before, err := c.content(ctx, name, maxEdit)
	if err != nil {
		return nil, err
	}
	if len(before) > maxEdit {
		return nil, fmt.Errorf("%s has more than %d bytes, the most that edit changes: use a command such as sed", name, maxEdit)
	}
	old, count := []byte(*args.Old), 0
	if len(old) > 0 {
		count = bytes.Count(before, old)
	}
	switch {
	case len(old) == 0:
		return nil, errors.New("old is empty: write_file makes a new file, and old needs a text that the file has")
	case *args.Old == *args.New:
		return nil, errors.New("old and new are the same")
	case count == 0:
		return nil, fmt.Errorf("%s does not have the text old%s: read_file shows what it has, with the exact spaces", name, nearly(before, *args.Old))
	case count > 1 && !args.All:
		return nil, fmt.Errorf("%s has the text old %d times: add lines around it until it is the only one, or set replace_all", name, count)
	}
	if size := len(before) + count*(len(*args.New)-len(old)); size > 4*maxEdit {
		return nil, fmt.Errorf("the file would have %d bytes: at most %d are written", size, 4*maxEdit)
	}
	after := bytes.ReplaceAll(before, old, []byte(*args.New))
	if err := c.replace(ctx, name, after); err != nil {
		return nil, err
	}
	diff := short(diffOf(name, before, after), maxDiff)
	return answer(diff, struct {
		Path         string `json:"path"`
		Replacements int    `json:"replacements"`
		Diff         string `json:"diff"`
	}{name, count, diff}), nil
}

// nearly says what may be wrong with a text that a file does not have.
func nearly(content []byte, old string) string {
	switch {
	case bytes.Contains(content, []byte("\r\n")) && bytes.Contains(bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n")), []byte(old)):
		return " with its line endings (the file has \\r\\n)"
	case bytes.Contains(content, []byte(strings.TrimSpace(old))) && strings.TrimSpace(old) != "":
		return ", but has it with other spaces around"
	}
	return ""
}

// diffOf returns the one part of two texts that differs, in the form of a diff.
func diffOf(name string, before, after []byte) string {
	a, b := slices.Collect(strings.Lines(text(before))), slices.Collect(strings.Lines(text(after)))
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < len(a)-start && end < len(b)-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	from, to := max(0, start-around), min(around, end)
	var d strings.Builder
	fmt.Fprintf(&d, "--- %s\n+++ %s\n@@ -%d,%d +%d,%d @@\n", name, name, from+1, len(a)-end+to-from, from+1, len(b)-end+to-from)
	put := func(mark string, lines []string) {
		for _, line := range lines {
			d.WriteString(mark + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	put(" ", a[from:start])
	put("-", a[start:len(a)-end])
	put("+", b[start:len(b)-end])
	put(" ", a[len(a)-end:len(a)-end+to])
	return d.String()
}

// patch applies a patch, all of it or nothing.
func (c *call) patch(ctx context.Context, text string) (*mcp.CallToolResult, error) {
	if c.agent.roots != nil {
		parsed, err := applypatch.Parse(text)
		if err != nil {
			return nil, err
		}
		for _, name := range parsed.Paths() {
			if _, err := c.path(ctx, name); err != nil {
				return nil, err
			}
		}
	}
	dry, err := c.agent.files.ApplyPatch(ctx, c.agent.dir, text, true)
	if err != nil {
		return nil, err
	}
	done, err := c.agent.files.ApplyPatch(ctx, c.agent.dir, text, false)
	if err != nil {
		return nil, err
	}
	diff := ""
	if dry.Diff != nil {
		diff = short(*dry.Diff, maxDiff)
	}
	summary := short(done.Output, maxDiff)
	return answer(summary+diff, struct {
		Summary string `json:"summary"`
		Diff    string `json:"diff"`
	}{summary, diff}), nil
}

// searchFiles is the tool search.
func searchFiles(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
	var args struct {
		Pattern *string `json:"pattern"`
		Glob    string  `json:"glob"`
		Path    string  `json:"path"`
		Max     *int64  `json:"max"`
	}
	if err := c.arguments(&args); err != nil {
		return nil, err
	}
	name, err := c.path(ctx, args.Path)
	if err != nil {
		return nil, err
	}
	params := protocol.SearchParams{
		Pattern: args.Pattern, TimeoutMs: new(uint64(searchTime)), MaxLineBytes: new(uint64(maxLine)),
		MaxMatches: new(uint64(c.within("max", args.Max, 100, 1, 1000))),
	}
	if args.Glob != "" {
		params.Globs = []string{args.Glob}
	}
	r, err := c.agent.files.Search(ctx, name, params)
	if err != nil {
		return nil, err
	}
	type match struct {
		Path string `json:"path"`
		Line uint64 `json:"line,omitempty"`
		Text string `json:"text,omitempty"`
	}
	data := struct {
		Root      string   `json:"root"`
		Matches   []match  `json:"matches"`
		Truncated string   `json:"truncated,omitempty"`
		Notes     []string `json:"notes,omitempty"`
	}{Root: name, Matches: []match{}, Truncated: r.Truncated, Notes: c.notes}
	var b strings.Builder
	for _, file := range r.Files {
		shown := strings.TrimPrefix(strings.TrimPrefix(file.Path, strings.TrimSuffix(name, "/")), "/")
		if shown == "" {
			shown = file.Path
		}
		if file.Kind == protocol.KindDirectory {
			shown += "/"
		}
		if args.Pattern == nil {
			data.Matches = append(data.Matches, match{Path: shown})
			fmt.Fprintln(&b, shown)
		}
		for _, m := range file.Matches {
			data.Matches = append(data.Matches, match{shown, m.Line, m.Text})
			fmt.Fprintf(&b, "%s:%d:%s\n", shown, m.Line, m.Text)
		}
		if b.Len() > maxText {
			data.Truncated = protocol.SearchedSize
			break
		}
	}
	if len(data.Matches) == 0 {
		b.WriteString("nothing was found\n")
	}
	if data.Truncated != "" {
		fmt.Fprintf(&b, "[there is more: the limit of %s was reached; name a directory or a glob, or a larger max]\n", data.Truncated)
	}
	if n := len(r.Errors); n > 0 {
		data.Notes = append(data.Notes, fmt.Sprintf("%d names could not be read", n))
	}
	addNotes(&b, data.Notes)
	return answer(b.String(), data), nil
}

const (
	searchTime = 30_000 // milliseconds
	maxLine    = 300    // bytes of a line that are shown
)
