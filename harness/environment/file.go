package environment

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/execagent/execagent/internal/paths"
	"github.com/execagent/execagent/internal/tomltext"
)

const (
	// maxFile bounds a file of environments, in bytes.
	maxFile = 64 << 10
	// maxDepth is how deep its tables, arrays and dotted keys may nest, because the
	// decoder's time is quadratic in the depth.
	maxDepth = 16
	// maxID is the longest id in a file, in characters.
	maxID = 64
)

// ReadFile reads a file of environments (client.md 4.3). A relative cwd is taken from the
// file's directory. The error of a file that does not exist is [fs.ErrNotExist].
//
//	default = "build"             # an id, or "none"; else local, if it is included
//	include_local = true
//
//	[[environments]]
//	id = "build"                  # letters, digits, - and _
//	url = "wss://build.example"   # or program, with args, env and cwd
//	auth_bearer_token = "..."
//	connect_timeout_sec = 2.5
//	initialize_timeout_sec = 10
//	skills.required = ["deploy"]
func ReadFile(path string) (Plan, error) {
	text, err := paths.ReadRegular(path, maxFile)
	_, long := errors.AsType[paths.LimitError](err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Plan{}, err
	case errors.Is(err, paths.ErrNotRegular):
		err = errors.New("not a file")
	case long:
		err = errors.New("too large")
	}
	if err != nil {
		return Plan{}, configErrorf("failed to read environment config `%s`: %v", path, err)
	}
	var f file
	if err := f.parse(text); err != nil {
		return Plan{}, configErrorf("failed to parse environment config `%s`: %v", path, err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return Plan{}, err
	}
	return f.plan(dir)
}

// file is the content of a file of environments. A member that is not in the file is nil.
type file struct {
	standard     *string // default
	includeLocal bool
	environments []written
}

type written struct {
	id, token, url, program, dir *string
	args                         *[]string
	env                          *map[string]string
	connect, initialize          *time.Duration
	required                     []string
}

// parse reads the text. Its errors are about the form; plan returns all others.
func (f *file) parse(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("not UTF-8")
	}
	if tomltext.Nesting(string(text)) > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	tree := map[string]any{}
	if err := toml.Unmarshal(text, &tree); err != nil {
		return placeOf(err)
	}
	var p parser
	top := table{&p, "", tree}
	top.allow("default", "include_local", "environments")
	f.standard = read(top, "default", "a string", as[string])
	f.includeLocal = true
	if include := read(top, "include_local", "a boolean", as[bool]); include != nil {
		f.includeLocal = *include
	}
	if tables := read(top, "environments", "a sequence of tables", list[map[string]any]); tables != nil {
		for _, t := range *tables {
			f.environments = append(f.environments, p.written(table{&p, "environments", t}))
		}
	}
	return p.err
}

// placeOf says where the decoder stopped. It leaves out the reason, which would quote the
// text and perhaps a token.
func placeOf(err error) error {
	at, ok := errors.AsType[toml.ParseError](err)
	switch {
	case !ok:
		return errors.New("not TOML")
	case at.LastKey == "":
		return fmt.Errorf("line %d is not TOML", at.Position.Line)
	}
	return fmt.Errorf("line %d is not TOML; the last key is `%s`", at.Position.Line, at.LastKey)
}

func (p *parser) written(t table) written {
	t.allow("id", "skills", "url", "auth_bearer_token", "program", "args", "env", "cwd", "connect_timeout_sec", "initialize_timeout_sec")
	e := written{
		id:         read(t, "id", "a string", as[string]),
		url:        read(t, "url", "a string", as[string]),
		token:      read(t, "auth_bearer_token", "a string", as[string]),
		program:    read(t, "program", "a string", as[string]),
		args:       read(t, "args", "a sequence of strings", list[string]),
		env:        read(t, "env", "a table of strings", stringTable),
		dir:        read(t, "cwd", "a string", as[string]),
		connect:    read(t, "connect_timeout_sec", "seconds, not negative", seconds),
		initialize: read(t, "initialize_timeout_sec", "seconds, not negative", seconds),
	}
	if e.id == nil {
		p.fail("missing field `id` in `environments`")
	}
	if e.token != nil && *e.token == "" {
		e.token = nil
	}
	if skills := read(t, "skills", "a table", as[map[string]any]); skills != nil {
		t := table{p, "environments.skills", *skills}
		t.allow("required")
		if required := read(t, "required", "a sequence of strings", list[string]); required != nil {
			e.required = *required
		}
	}
	return e
}

// plan checks the content and makes a plan from it.
func (f *file) plan(dir string) (Plan, error) {
	plan := Plan{IncludeLocal: f.includeLocal}
	ids := map[string]bool{Local: f.includeLocal}
	for _, w := range f.environments {
		e, err := w.entry(dir)
		if err != nil {
			return Plan{}, err
		}
		if ids[e.ID] {
			return Plan{}, configErrorf("environment id `%s` is duplicated", e.ID)
		}
		ids[e.ID] = true
		plan.Entries = append(plan.Entries, e)
	}
	if f.standard == nil {
		if f.includeLocal {
			plan.Default = Local
		}
		return plan, nil
	}
	switch id := strings.TrimSpace(*f.standard); {
	case id == "":
		return Plan{}, configErrorf("default environment id cannot be empty")
	case isNone(id):
	case !ids[id]:
		return Plan{}, configErrorf("default environment `%s` is not configured", id)
	default:
		plan.Default = id
	}
	return plan, nil
}

func (w written) entry(dir string) (Entry, error) {
	id := *w.id
	if err := checkFileID(id); err != nil {
		return Entry{}, err
	}
	hasProgramKeys := w.args != nil || w.env != nil || w.dir != nil
	switch {
	case w.program == nil && hasProgramKeys:
		return Entry{}, configErrorf("environment `%s` args, env, and cwd require program", id)
	case w.url == nil && w.token != nil:
		return Entry{}, configErrorf("environment `%s` auth_bearer_token requires url", id)
	case w.url == nil && w.connect != nil:
		return Entry{}, configErrorf("environment `%s` connect_timeout_sec requires url", id)
	case (w.url == nil) == (w.program == nil):
		return Entry{}, configErrorf("environment `%s` must set exactly one of url or program", id)
	}
	e := Entry{ID: id, Skills: Skills{Required: w.required}}
	var err error
	if w.url != nil {
		e.Transport, err = w.server()
	} else {
		e.Transport, err = w.command(dir)
	}
	return e, err
}

func checkFileID(id string) error {
	trimmed := strings.TrimSpace(id)
	switch {
	case trimmed == "":
		return configErrorf("environment id cannot be empty")
	case trimmed != id:
		return configErrorf("environment id `%s` must not contain surrounding whitespace", id)
	case isNone(id), strings.EqualFold(id, Local):
		return configErrorf("environment id `%s` is reserved", id)
	case utf8.RuneCountInString(id) > maxID:
		return configErrorf("environment id `%s` cannot be longer than %d characters", id, maxID)
	case strings.ContainsFunc(id, func(r rune) bool { return !isAlphanumeric(r) && r != '-' && r != '_' }):
		return configErrorf("environment id `%s` must contain only ASCII letters, numbers, '-' or '_'", id)
	}
	return nil
}

func (w written) server() (Transport, error) {
	t := URL{
		URL:               strings.TrimSpace(*w.url),
		ConnectTimeout:    duration(w.connect),
		InitializeTimeout: duration(w.initialize),
	}
	if w.token != nil {
		t.BearerToken = *w.token
	}
	if t.URL == "" {
		return nil, configErrorf("environment url cannot be empty")
	}
	if strings.HasPrefix(t.URL, "unix://") {
		return t, t.checkHeaders() // dialling checks the path
	}
	if !strings.HasPrefix(t.URL, "ws://") && !strings.HasPrefix(t.URL, "wss://") {
		return nil, configErrorf("environment url `%s` must use ws://, wss:// or unix://", t.URL)
	}
	u, err := url.Parse(t.URL)
	if cause, ok := errors.AsType[*url.Error](err); ok {
		err = cause.Err // the text around it has the URL again
	}
	if err == nil && u.Host == "" {
		err = errors.New("no host")
	}
	if err != nil {
		return nil, configErrorf("environment url `%s` is invalid: %v", t.URL, err)
	}
	return t, t.checkHeaders()
}

func (w written) command(dir string) (Transport, error) {
	t := Stdio{Program: strings.TrimSpace(*w.program), InitializeTimeout: duration(w.initialize)}
	if t.Program == "" {
		return nil, configErrorf("environment `%s` program cannot be empty", *w.id)
	}
	if w.args != nil {
		t.Args = *w.args
	}
	if w.env != nil {
		t.Env = *w.env
	}
	if w.dir != nil {
		if t.Dir = *w.dir; !filepath.IsAbs(t.Dir) {
			t.Dir = filepath.Join(dir, t.Dir)
		}
	}
	return t, nil
}

// duration returns 0, the default, for a missing value. A written limit of 0 becomes the
// shortest one, which is over at once.
func duration(d *time.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return max(*d, 1)
}

// parser reads values of a document, and keeps the first error.
type parser struct{ err error }

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

// table is a table of the document; at is its place, "" for the document itself.
type table struct {
	p      *parser
	at     string
	values map[string]any
}

// allow refuses keys that are not among names. The names of keys differ by their case.
func (t table) allow(names ...string) {
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if slices.Contains(names, key) {
			continue
		}
		expected := "`" + strings.Join(names, "`, `") + "`"
		if len(names) > 1 {
			expected = "one of " + expected
		}
		t.p.fail("unknown field `%s`, expected %s%s", key, expected, t.where())
	}
}

func (t table) where() string {
	if t.at == "" {
		return ""
	}
	return " in `" + t.at + "`"
}

// read returns the value of a key, nil if the key is missing or the value is no want.
func read[V any](t table, key, want string, convert func(any) (V, bool)) *V {
	found, ok := t.values[key]
	if !ok {
		return nil
	}
	value, ok := convert(found)
	if !ok {
		t.p.fail("invalid value of `%s`, expected %s%s", key, want, t.where())
		return nil
	}
	return &value
}

func as[V any](v any) (V, bool) {
	value, ok := v.(V)
	return value, ok
}

func stringTable(v any) (map[string]string, bool) {
	t, ok := v.(map[string]any)
	values := make(map[string]string, len(t))
	for key, value := range t {
		s, isString := value.(string)
		values[key], ok = s, ok && isString
	}
	return values, ok
}

// list returns the elements of an array, which must all have one type.
func list[V any](v any) ([]V, bool) {
	if typed, ok := v.([]V); ok {
		return typed, true
	}
	values, ok := v.([]any)
	elements := make([]V, 0, len(values))
	for _, value := range values {
		element, isV := value.(V)
		elements, ok = append(elements, element), ok && isV
	}
	return elements, ok
}

// seconds reads a number of seconds, with or without a fraction.
func seconds(v any) (time.Duration, bool) {
	var n float64
	switch v := v.(type) {
	case int64:
		n = float64(v)
	case float64:
		n = v
	default:
		return 0, false
	}
	n *= float64(time.Second)
	if !(n >= 0 && n < math.MaxInt64) { // NaN fails both
		return 0, false
	}
	return time.Duration(n), true
}
