package filecopy

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/strictjson"
)

const (
	// ToolArg is the first argument that makes this program a tool: it calls [ToolMain].
	ToolArg = "builtin-tool"
	// ToolRetain is how much output of a tool is kept at least, in bytes. It covers all output that
	// can be on its way when a connection is lost.
	ToolRetain = 2 * Window
	// tool is the name of the only tool, by which clients start it as a process of their session
	// (rpc.md 8.3). It takes one argument, a [Request].
	tool = "copy"
)

// IsTool reports whether there is a tool of that name.
func IsTool(name string) bool { return name == tool }

// ToolCommand returns the command line of a tool with its arguments, and the argv[0] that the tool
// sees.
func ToolCommand(argv []string) (command []string, arg0 *string) {
	return append([]string{"/proc/self/exe", ToolArg}, argv...), new("agent")
}

// A Request tells the tool to send the sources to its standard output, to list a file or a directory
// there, or to receive into the target from its standard input.
type Request struct {
	Send    []string `json:"send,omitempty"`
	Follow  bool     `json:"follow,omitempty"`
	Measure bool     `json:"measure,omitempty"`

	// List is a file or a directory to list: only headers are sent.
	List string `json:"list,omitempty"`

	Receive string `json:"receive,omitempty"`
	Many    bool   `json:"many,omitempty"`
	Owners  bool   `json:"owners,omitempty"`

	Plain bool `json:"plain,omitempty"`

	// Raw says that the paths are in base64. Argv sets it if a path is not UTF-8, because JSON would
	// replace its bytes.
	Raw bool `json:"raw,omitempty"`
}

// Argv returns the command line of the tool.
func (r *Request) Argv() []string {
	sent := *r
	if sent.Raw = !utf8.ValidString(r.Receive + r.List + strings.Join(r.Send, "/")); sent.Raw {
		sent.Receive, sent.Send = base64.StdEncoding.EncodeToString([]byte(r.Receive)), nil
		sent.List = base64.StdEncoding.EncodeToString([]byte(r.List))
		for _, path := range r.Send {
			sent.Send = append(sent.Send, base64.StdEncoding.EncodeToString([]byte(path)))
		}
	}
	text, _ := json.Marshal(&sent) // encoding strings and booleans never fails
	return []string{tool, string(text)}
}

// valid reports whether the request says one thing to do.
func (r *Request) valid() bool {
	n := 0
	for _, does := range []bool{len(r.Send) > 0, r.Receive != "", r.List != ""} {
		if does {
			n++
		}
	}
	return n == 1
}

// decode reads what Argv has written.
func (r *Request) decode(text string) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(r); err != nil {
		return err
	}
	if !r.Raw {
		return nil
	}
	raw, err := strictjson.StdBase64.Decode(r.Receive)
	r.Receive = string(raw)
	if err == nil {
		raw, err = strictjson.StdBase64.Decode(r.List)
		r.List = string(raw)
	}
	for i := 0; i < len(r.Send) && err == nil; i++ {
		raw, err = strictjson.StdBase64.Decode(r.Send[i])
		r.Send[i] = string(raw)
	}
	return err
}

const (
	// maxNotes is how many left out files the tool names.
	maxNotes = 100
	// pipeSize is how much a pipe of the tool holds, in bytes, if the host allows it.
	pipeSize = 1 << 20
)

// ToolMain is the main function of the tool; its name and its [Request] follow [ToolArg]. It writes
// messages as lines on stderr. The code is 0, or 1 if not all was copied, or 2 if it does not
// understand the request.
//
// When it sends, the other end writes to stdin how many bytes have arrived ([Acknowledge]). The
// tool never sends more than [Window] bytes beyond that. When stdin ends, the tool ends.
func ToolMain() (code int) {
	if len(os.Args) < 3 || !IsTool(os.Args[2]) {
		return 2
	}
	args, stdin, stdout, stderr := os.Args[3:], os.Stdin, os.Stdout, os.Stderr
	var request Request
	if len(args) != 1 {
		return fail(stderr, errors.New("one argument is needed, a request"), 2)
	}
	if err := request.decode(args[0]); err != nil || !request.valid() {
		return fail(stderr, fmt.Errorf("the request cannot be understood: %.256s", args[0]), 2)
	}
	notes := &notes{w: stderr}
	for _, f := range []*os.File{stdin, stdout} {
		// This only improves speed, and fails if the file is no pipe.
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, pipeSize)
	}
	var err error
	if request.Receive != "" {
		err = take(&request, notes, stdin)
	} else {
		err = serve(&request, notes, stdin, stdout)
	}
	notes.end()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrIncomplete):
		return 1 // the notes say more
	}
	return fail(stderr, err, 1)
}

func fail(stderr io.Writer, err error, code int) int {
	_, _ = fmt.Fprintln(stderr, err) // there is no other way to report it
	return code
}

// take receives. A signal ends it, and leaves no temporary file.
func take(request *Request, notes *notes, stdin *os.File) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	// Only a read in the poller can be interrupted.
	_ = unix.SetNonblock(int(stdin.Fd()), true)
	stdin = os.NewFile(stdin.Fd(), stdin.Name())
	defer context.AfterFunc(ctx, func() { _ = stdin.SetReadDeadline(time.Unix(1, 0)) })()
	r := Receiver{
		Target: request.Receive, Many: request.Many, Owners: request.Owners, Plain: request.Plain, Note: notes.note,
	}
	err := r.Receive(ctx, stdin)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// serve sends as fast as the other end receives. It leaves nothing behind, so a signal may kill it
// at any time.
func serve(request *Request, notes *notes, stdin, stdout *os.File) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	w := newWindow(ctx, stdout)
	go func() {
		err := w.follow(stdin) // this goroutine ends with the program
		cancel(err)
	}()
	if request.List != "" {
		return list(ctx, w, request.List, notes.note)
	}
	s := Sender{
		Sources: request.Send, Follow: request.Follow, Plain: request.Plain, Measure: request.Measure, Note: notes.note,
	}
	return s.Send(ctx, w)
}

// notes writes lines about files that are left out.
type notes struct {
	w    io.Writer
	mu   sync.Mutex
	more int
	said int
}

func (n *notes) note(path string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.said == maxNotes {
		n.more++
		return
	}
	n.said++
	_, _ = fmt.Fprintln(n.w, about(path, err)) // there is no other way to report it
}

func (n *notes) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.more > 0 {
		_, _ = fmt.Fprintf(n.w, "and %d more\n", n.more)
	}
}
