package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/internal/cli"
)

// errForm says that a change of whole lines would change more than the context.
var errForm = errors.New("commands cannot change it, because of its form (such as dotted keys): edit the file")

// errNoFile keeps a change from replacing /dev/null.
var errNoFile = errors.New(os.DevNull + " means that there is no file of contexts: name the file to change with --config")

// ChangeContexts reads the file of contexts at path, calls change, and replaces the file in one step:
// others see the old file or the new one. A lock keeps other changes out meanwhile. Comments stay,
// except in a context that is replaced or removed.
func ChangeContexts(path string, change func(f *ContextFile) error) (err error) {
	if path == os.DevNull {
		return errNoFile
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", dir, err)
	}
	f, err := ReadContexts(path)
	if err != nil {
		return err
	}
	before := f.text
	if err := change(f); err != nil {
		return err
	}
	if f.text == before {
		return nil
	}
	if len(f.text) > cli.MaxFile {
		return fmt.Errorf("%s would be longer than %d bytes", path, cli.MaxFile)
	}
	// If path is a symbolic link, the target of the link is replaced, not the link.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return write(path, f.text)
}

// write replaces a file. Only the user can read the new file.
func write(path, text string) (err error) {
	t, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // has mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(t.Name()))
		}
	}()
	_, err = t.WriteString(text)
	if err = errors.Join(err, t.Sync(), t.Close()); err != nil {
		return err
	}
	return os.Rename(t.Name(), path)
}

// Put adds a context, or replaces the context of the same name.
func (f *ContextFile) Put(c Context) error {
	if !ValidContextName(c.Name) {
		return fmt.Errorf("context %.*q is not a valid name: use 1 to %d of A-Z a-z 0-9 . _ - and begin with a letter or a digit", maxName, c.Name, maxName)
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("context %s: %w", c.Name, err)
	}
	text := f.text
	if f.index(c.Name) >= 0 {
		text = without(text, c.Name)
	} else if len(f.Contexts) >= maxContexts {
		return fmt.Errorf("%s has %d contexts already", f.Path, maxContexts)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if text != "" {
		text += "\n"
	}
	want := slices.DeleteFunc(slices.Clone(f.Contexts), func(old Context) bool { return old.Name == c.Name })
	return f.become(text+c.toml(), f.Current, append(want, c))
}

// Remove removes a context. If it is the current one, no context is current afterwards.
func (f *ContextFile) Remove(name string) error {
	if _, err := f.Find(name); err != nil {
		return err
	}
	text, current := without(f.text, name), f.Current
	if current == name {
		text, current = withCurrent(text, ""), ""
	}
	want := slices.DeleteFunc(slices.Clone(f.Contexts), func(old Context) bool { return old.Name == name })
	return f.become(text, current, want)
}

// Use makes a context the current one; with "" no context is current.
func (f *ContextFile) Use(name string) error {
	if name != "" {
		if _, err := f.Find(name); err != nil {
			return err
		}
	}
	return f.become(withCurrent(f.text, name), name, f.Contexts)
}

// become makes text the new text of the file, if it has exactly the wanted contexts.
func (f *ContextFile) become(text, current string, want []Context) error {
	next := &ContextFile{Path: f.Path}
	if err := next.parse(text); err != nil {
		return fmt.Errorf("%s: %w", f.Path, errForm)
	}
	sort.Slice(want, func(i, j int) bool { return want[i].Name < want[j].Name })
	if next.Current != current || !slices.EqualFunc(next.Contexts, want, func(a, b Context) bool { return a.equal(&b) }) {
		return fmt.Errorf("%s: %w", f.Path, errForm)
	}
	*f = *next
	return nil
}

// toml returns the lines of the context for a file.
func (c *Context) toml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "[contexts.%s]\n", key(c.Name))
	for _, row := range []struct{ key, value string }{
		{"url", c.URL}, {"registry", c.Registry}, {"environment_id", c.EnvironmentID}, {"transport", c.Transport}, {"token_file", c.TokenFile}, {"token", c.token},
		{"tls_ca", c.TLSCA}, {"tls_cert", c.TLSCert}, {"tls_key", c.TLSKey}, {"tls_server_name", c.TLSServerName},
	} {
		if row.value != "" {
			fmt.Fprintf(&b, "%s = %s\n", row.key, quoted(row.value))
		}
	}
	if len(c.TokenCommand) > 0 {
		words := make([]string, 0, len(c.TokenCommand))
		for _, word := range c.TokenCommand {
			words = append(words, quoted(word))
		}
		fmt.Fprintf(&b, "token_command = [%s]\n", strings.Join(words, ", "))
	}
	return b.String()
}

// key returns a name as a TOML key. A name with dots needs quotes.
func key(name string) string {
	if strings.Contains(name, ".") {
		return quoted(name)
	}
	return name
}

// quoted returns a text without control characters as a TOML string.
func quoted(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// forms match the lines that a change looks for. They are compiled on first use, because every start
// of the program loads this package.
type forms struct{ header, context, current *regexp.Regexp }

var lineForms = sync.OnceValue(func() forms {
	return forms{
		header:  regexp.MustCompile(`^\s*\[`),
		context: regexp.MustCompile(`^\s*\[\s*contexts\s*\.\s*["']?([A-Za-z0-9._-]+)["']?\s*\]`),
		current: regexp.MustCompile(`^\s*current\s*=\s*(?:"[^"]*"|'[^']*')`),
	}
})

// without returns the text without the lines of a context. Comments right above a context
// belong to it.
func without(text, name string) string {
	lines := strings.SplitAfter(text, "\n")
	begin := slices.IndexFunc(lines, func(line string) bool {
		found := lineForms().context.FindStringSubmatch(line)
		return found != nil && found[1] == name
	})
	if begin < 0 {
		return text
	}
	end := begin + 1
	for end < len(lines) && !lineForms().header.MatchString(lines[end]) {
		end++
	}
	comment := func(i int) bool { return strings.HasPrefix(strings.TrimSpace(lines[i]), "#") }
	for end < len(lines) && comment(end-1) {
		end--
	}
	for begin > 0 && comment(begin-1) {
		begin--
	}
	return strings.Join(slices.Delete(lines, begin, end), "")
}

// withCurrent returns the text with another current context, "" for none.
func withCurrent(text, name string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if lineForms().header.MatchString(line) {
			break
		}
		if old := lineForms().current.FindString(line); old != "" {
			if name == "" {
				return strings.Join(slices.Delete(lines, i, i+1), "")
			}
			lines[i] = "current = " + quoted(name) + line[len(old):]
			return strings.Join(lines, "")
		}
	}
	if name == "" {
		return text
	}
	if text != "" {
		text = "\n" + text
	}
	return "current = " + quoted(name) + "\n" + text
}
