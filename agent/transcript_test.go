package agent

import (
	"encoding/base64"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

var update = flag.Bool("update", false, "rewrite what the server is expected to say in testdata/*.txtar")

// TestTranscripts plays the conversations in testdata. Prose on top of each
// says what it pins. The file "script" has one step a line:
//
//	> TEXT    the client sends a message
//	< TEXT    the server's next message
//	<~ TEXT   one of a block of such lines, whose order is not fixed
//	closed    the server ends the connection
//	on NAME   go on with another connection, opened by its first use
//	hello     initialize and initialized, answers unseen
//	drop      the client's end is lost, and the server has noticed
//	sh CMD    run a shell command in $DIR
//	let A X   from here on, $A in a message is X, in which there may be others
//
// base64(TEXT) in a message is the string of JSON that has TEXT in base64. In
// TEXT \n is a line feed, as in Go.
//
// An optional file "config" has settings of the agent. $DIR is a fresh
// directory, $HTTP the address of a web server (http_test.go), $ECHO that of a
// server which sends back what comes, $SESSION1 the first session id that was seen.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			head, script, ok := strings.Cut(string(rig.Value(os.ReadFile(file))), "-- script --\n")
			prose, config, _ := strings.Cut(head, "-- config --\n")
			if !ok || strings.TrimSpace(prose) == "" {
				t.Fatal("want prose on top that says what is pinned, and a script")
			}
			script = newPlayer(t, config).play(script)
			if *update && !t.Failed() {
				rig.Must(t, os.WriteFile(file, []byte(head+"-- script --\n"+script), 0o666))
			}
		})
	}
}

// player plays one transcript.
type player struct {
	t        *testing.T
	harness  *harness
	dir      string
	http     string
	echo     string
	sessions []string
	lets     map[string]string
	lines    map[string]*line
	now      *line
	owed     int // answers, for -update
}

// line is one connection.
type line struct {
	*rawclient.Client
	served <-chan struct{}
	talk   contracttest.Conversation
}

// next returns the next message, which is one that the contract has.
func (l *line) next(t *testing.T) string {
	t.Helper()
	m := l.Next(t)
	rig.Check(t, l.talk.Received([]byte(m)))
	return m
}

func newPlayer(t *testing.T, config string) *player {
	p := &player{t: t, dir: t.TempDir(), lets: map[string]string{}, lines: map[string]*line{}}
	server := httptest.NewServer(webHandler())
	t.Cleanup(server.Close)
	p.http = strings.TrimPrefix(server.URL, "http://")
	p.echo = listenFor(t, rig.Echo)
	cfg := Config{Version: "0.171.0+execagent.test", Environ: []string{"PATH=/usr/bin:/bin", "HOME=" + p.dir}}
	p.configure(&cfg, config)
	p.harness = newHarness(t, cfg)
	p.on("a")
	return p
}

func (p *player) configure(cfg *Config, settings string) {
	for setting := range strings.Lines(settings) {
		name, value, _ := strings.Cut(strings.TrimSpace(setting), " ")
		var err error
		switch name {
		case "concurrent-requests":
			cfg.ConcurrentRequests, err = strconv.Atoi(value)
		case "session-ttl":
			cfg.SessionTTL, err = time.ParseDuration(value)
		case "named-session-ttl":
			cfg.NamedSessionTTL, err = time.ParseDuration(value)
		case "retain-bytes":
			cfg.RetainBytes, err = strconv.ParseInt(value, 10, 64)
		case "env":
			cfg.Environ = append(cfg.Environ, value)
		default:
			p.t.Fatalf("unknown setting %q", name)
		}
		if err != nil {
			p.t.Fatalf("setting %s: %v", name, err)
		}
	}
}

func (p *player) on(name string) {
	if p.lines[name] == nil {
		conn, served := p.harness.dial()
		p.lines[name] = &line{Client: rawclient.New(conn), served: served}
	}
	p.now = p.lines[name]
}

// play runs a script and returns it with what the server really said.
func (p *player) play(script string) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(script, "\n"), "\n")
	for len(lines) > 0 && !p.t.Failed() {
		n := 0
		for n < len(lines) && strings.HasPrefix(lines[n], "<") {
			n++
		}
		for _, l := range p.hear(lines[:n]) {
			fmt.Fprintln(&out, l)
		}
		if lines = lines[n:]; len(lines) > 0 {
			p.step(lines[0])
			fmt.Fprintln(&out, lines[0])
			lines = lines[1:]
		}
	}
	if *update {
		for _, l := range p.hear(nil) {
			fmt.Fprintln(&out, l)
		}
	}
	return out.String()
}

func (p *player) step(text string) {
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case ">":
		message := []byte(p.expand(p.spell(rest)))
		p.now.talk.Sent(message)
		if err := p.now.Write(message); err != nil {
			p.t.Fatalf("%s: %v", text, err)
		}
		if strings.HasPrefix(rest, `{"id":`) {
			p.owed++
		}
	case "let":
		name, value, ok := strings.Cut(rest, " ")
		if _, twice := p.lets[name]; twice || !ok || !abbreviations.MatchString("$"+name) {
			p.t.Fatalf("%s: want a name of capital letters and digits that is not taken, and a text", text)
		}
		p.lets[name] = p.spell(value)
	case "on":
		p.on(rest)
	case "hello":
		p.step(`> {"id":0,"method":"initialize","params":{"clientName":"transcript"}}`)
		if got := p.normal(p.now.next(p.t)); !strings.HasPrefix(got, `{"id":0,"result":`) {
			p.t.Fatalf("hello: %s", got)
		}
		p.step(`> {"method":"initialized"}`)
	case "drop":
		_ = p.now.Close()
		waitFor(p.t, p.now.served, "the server to notice a lost connection")
	case "closed":
		waitFor(p.t, p.now.served, "the server to end a connection")
		if m, ok := <-p.now.Messages(); ok {
			p.t.Fatalf("the server said something before it ended the connection: %s", m)
		}
	case "sh":
		cmd := exec.Command("/bin/sh", "-ec", p.expand(rest))
		cmd.Dir = p.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			p.t.Fatalf("%s: %v\n%s", text, err, out)
		}
	case "", "#":
	default:
		p.t.Fatalf("unknown step %q", text)
	}
}

// hear compares what the server says with a block of expected lines and
// returns the lines as they should be.
func (p *player) hear(want []string) []string {
	if *update {
		return p.record(want)
	}
	for i := 0; i < len(want); {
		n := i + 1 // the end of a block without order
		for strings.HasPrefix(want[i], "<~") && n < len(want) && strings.HasPrefix(want[n], "<~") {
			n++
		}
		var got []string
		for range n - i {
			got = append(got, p.normal(p.now.next(p.t)))
		}
		if open := p.texts(want[i:n]); !slices.Equal(sorted(got), sorted(open)) {
			p.t.Fatalf("the server said\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(open, "\n  "))
		}
		i = n
	}
	return want
}

// record takes whatever the server says before it falls silent.
func (p *player) record(want []string) []string {
	var got []string
	for {
		silence := 300 * time.Millisecond
		if p.owed > 0 {
			silence = 5 * time.Second
		}
		select {
		case m, ok := <-p.now.Messages():
			if ok {
				got = append(got, p.normal(m))
				if !strings.HasPrefix(m, `{"method":`) {
					p.owed--
				}
				continue
			}
		case <-time.After(silence):
		}
		p.owed = 0
		if slices.Equal(sorted(got), sorted(p.texts(want))) {
			return want
		}
		for i := range got {
			got[i] = "< " + p.abbreviate(got[i])
		}
		return got
	}
}

// texts are the messages of expected lines, written out.
func (p *player) texts(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		_, text, _ := strings.Cut(l, " ")
		out[i] = p.spell(text)
	}
	return out
}

func sorted(lines []string) []string { return slices.Sorted(slices.Values(lines)) }

var (
	uuids   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)
	infos   = regexp.MustCompile(`"environmentInfo":\{.*"capabilities":\{[^}]*\}\}`)
	numbers = regexp.MustCompile(`"(pid|uid|gid|owner|group)":(?:[0-9]+|"[^"]*")|"([a-z]*[aA]tMs)":(?:1[5-9]|2)[0-9]{11}`)
	sizes   = regexp.MustCompile(`("isDirectory":true,"isFile":false,(?:"isSymlink":[a-z]+|"type":"directory"),"size":)[0-9]+`)
)

// normal replaces what differs from run to run.
func (p *player) normal(message string) string {
	message = uuids.ReplaceAllStringFunc(message, func(id string) string {
		i := slices.Index(p.sessions, id)
		if i < 0 {
			i = len(p.sessions)
			p.sessions = append(p.sessions, id)
		}
		return fmt.Sprintf("$SESSION%d", i+1)
	})
	message = infos.ReplaceAllString(message, `"environmentInfo":$$INFO`)
	message = numbers.ReplaceAllString(message, `"$1$2":$$N`)
	message = sizes.ReplaceAllString(message, `$1$$N`)
	message = strings.ReplaceAll(message, p.http, "$HTTP")
	message = strings.ReplaceAll(message, p.echo, "$ECHO")
	return strings.ReplaceAll(message, p.dir, "$DIR")
}

// expand is the inverse of normal, for what the client sends.
func (p *player) expand(text string) string {
	text = strings.NewReplacer("$DIR", p.dir, "$HTTP", p.http, "$ECHO", p.echo).Replace(text)
	for i, id := range p.sessions {
		text = strings.ReplaceAll(text, fmt.Sprintf("$SESSION%d", i+1), id)
	}
	return text
}

var (
	abbreviations = regexp.MustCompile(`\$([A-Z][A-Z0-9]*)`)
	encodings     = regexp.MustCompile(`base64\(([^)]*)\)`)
	encoded       = regexp.MustCompile(`("(?:chunk|deltaBase64|bodyBase64|dataBase64)":)"([A-Za-z0-9+/]+=*)"`)
)

// spell writes out what is abbreviated in a message of a script.
func (p *player) spell(text string) string {
	text = abbreviations.ReplaceAllStringFunc(text, func(name string) string {
		if value, ok := p.lets[name[1:]]; ok {
			return value
		}
		return name
	})
	return encodings.ReplaceAllStringFunc(text, func(call string) string {
		content, err := strconv.Unquote(`"` + encodings.FindStringSubmatch(call)[1] + `"`)
		if err != nil {
			p.t.Fatalf("%s: %v", call, err)
		}
		return `"` + base64.StdEncoding.EncodeToString([]byte(content)) + `"`
	})
}

// abbreviate is the inverse of spell, for what the server says.
func (p *player) abbreviate(message string) string {
	names := slices.SortedFunc(maps.Keys(p.lets), func(a, b string) int { return len(p.lets[b]) - len(p.lets[a]) })
	for _, name := range names {
		message = strings.ReplaceAll(message, p.lets[name], "$"+name)
	}
	return encoded.ReplaceAllStringFunc(message, func(member string) string {
		parts := encoded.FindStringSubmatch(member)
		content, err := base64.StdEncoding.DecodeString(parts[2])
		text := strconv.Quote(string(content))
		call := "base64(" + text[1:len(text)-1] + ")"
		if err != nil || p.spell(call) != `"`+parts[2]+`"` { // such as text with a parenthesis
			return member
		}
		return parts[1] + call
	})
}
