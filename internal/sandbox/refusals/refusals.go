package refusals

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
)

// A Layer is the part of a sandbox that has refused something, by its name on the wire and in metrics.
type Layer string

// The layers.
const (
	File    Layer = "file"    // the policy about files
	Socket  Layer = "socket"  // the rules about UNIX sockets, what the agent listens at, and ways past the proxy
	Network Layer = "network" // the policy of the proxy
	Program Layer = "program" // the rules about programs
	Limit   Layer = "limit"   // a limit of resources
	Ceiling Layer = "ceiling" // the operator's ceiling for files
)

// Layers returns all layers.
func Layers() []Layer { return []Layer{File, Socket, Network, Program, Limit, Ceiling} }

// An Operation is what a command has tried, by its name on the wire.
type Operation string

// The operations.
const (
	Read    Operation = "read"
	Write   Operation = "write"
	Create  Operation = "create"
	Remove  Operation = "remove"
	Move    Operation = "move"
	Change  Operation = "change" // mode, owner, times, attributes or size
	Execute Operation = "execute"
	Connect Operation = "connect to"
	Send    Operation = "send" // an HTTP request
	Use     Operation = "use"  // a resource
)

var operations = []Operation{Read, Write, Create, Remove, Move, Change, Execute, Connect, Send, Use}

// A Need is the kind of permission that would let a refused attempt succeed, by its name on the wire.
type Need string

// The needs.
const (
	Nothing      Need = "" // no permission does
	ToRead       Need = "read"
	ToWrite      Need = "write"
	ToReach      Need = "host"
	ToRequest    Need = "request" // METHOD HOST/PATH
	ToReachLocal Need = "local"   // local and private addresses
	ToConnect    Need = "socket"  // a UNIX socket
)

var needs = []Need{Nothing, ToRead, ToWrite, ToReach, ToRequest, ToReachLocal, ToConnect}

// A Refusal is something that a command has tried and that was refused.
type Refusal struct {
	Layer     Layer
	Operation Operation
	Subject   string // the path, the host with its port, the program
	Reason    string // the rule that refused it, or its justification
	Need      Need
	At        string // the path, host or request for Need; "" where it needs none
	Times     int
}

// Bounds of a Log.
const (
	maxKept    = 64       // different refusals
	maxLike    = 8        // of them, writes that one folder would allow
	maxBytes   = 48 << 10 // of them
	maxSubject = 512      // bytes of a subject, and of At
	maxReason  = 512      // bytes of a reason
	maxWord    = 32       // bytes of a name
)

// FileSize is the size of the part of a file that a Log takes, in bytes. A record takes little more than its texts.
const FileSize = 128 << 10

// Log collects the refusals of one command. An equal refusal counts, and takes no memory. Its methods may
// be called at once, also on nil, which collects nothing.
type Log struct {
	mu    sync.Mutex // guards what follows
	kept  []Refusal
	index map[Refusal]int // of each in kept, by the refusal without Times
	bytes int
	more  int // refusals that were not kept

	write func(b []byte, at int) // to the file; nil: there is none
	end   int                    // of the file
	place []int                  // of each of kept in the file
}

// Add notes a refusal, Times times or, with 0, once. Texts are cut, and get no characters that a
// terminal would obey.
func (l *Log) Add(r Refusal) {
	if l == nil {
		return
	}
	r.Layer, r.Operation = Layer(Text(string(r.Layer), maxWord)), Operation(Text(string(r.Operation), maxWord)) // they may come from another agent
	r.Subject, r.Reason = Text(r.Subject, maxSubject), Text(r.Reason, maxReason)
	if Text(r.At, maxSubject) != r.At {
		r.Need, r.At = Nothing, "" // what is left of it would be another path
	}
	times := max(r.Times, 1)
	r.Times = 0
	l.mu.Lock()
	defer l.mu.Unlock()
	size := len(r.Subject) + len(r.At) + len(r.Reason)
	i, known := l.index[r]
	switch {
	case known:
		l.kept[i].Times += times
		l.store(counted(l.kept[i].Times), l.placeOf(i))
	case len(l.kept) >= maxKept || l.likeLocked(&r) >= maxLike || l.bytes+size > maxBytes:
		l.more += times
		l.store(counted(l.more), 0)
	default:
		if l.index == nil {
			l.index = map[Refusal]int{}
		}
		l.index[r] = len(l.kept)
		r.Times = times
		l.kept, l.bytes = append(l.kept, r), l.bytes+size
		l.appendLocked(&r)
	}
}

// likeLocked returns how many like r were kept. Files of one folder leave room for other refusals.
func (l *Log) likeLocked(r *Refusal) (n int) {
	for i := range l.kept {
		if r.isLike(&l.kept[i]) {
			n++
		}
	}
	return n
}

// AddAll adds refusals, of which more were not kept.
func (l *Log) AddAll(all []Refusal, more int) {
	for _, r := range all {
		l.Add(r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more += more
}

// All returns the refusals in the order in which they came first, and how many more there were.
func (l *Log) All() (kept []Refusal, more int) {
	if l == nil {
		return nil, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Refusal(nil), l.kept...), l.more
}

// A file begins with the number of refusals that were not kept. A record is the number of times, the
// length of the rest, and the rest.
const headOfFile = 4

// ToFile returns a Log that also writes to the beginning of a file, which has FileSize bytes there, for another
// process.
func ToFile(fd int) *Log {
	return &Log{end: headOfFile, write: func(b []byte, at int) {
		_, _ = unix.Pwrite(fd, b, int64(at)) // the file has its size already, so only a wrong descriptor fails
	}}
}

func (l *Log) store(b []byte, at int) {
	if l.write != nil {
		l.write(b, at)
	}
}

func (l *Log) placeOf(i int) int {
	if l.write == nil {
		return 0
	}
	return l.place[i]
}

func (l *Log) appendLocked(r *Refusal) {
	if l.write == nil {
		return
	}
	rest := r.encode()
	record := append(binary.LittleEndian.AppendUint32(counted(r.Times), uint32(len(rest))), rest...)
	l.place = append(l.place, l.end)
	l.store(record, l.end)
	l.end += len(record)
}

// counted encodes a number of times.
func counted(n int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(min(n, 1<<31-1))) }

func (r *Refusal) encode() []byte {
	var b []byte
	for _, text := range []string{string(r.Layer), string(r.Operation), string(r.Need), r.Subject, r.Reason, r.At} {
		b = pack.AppendString(b, text)
	}
	return b
}

// ReadFile adds the refusals of a file to l. It may still be written.
func (l *Log) ReadFile(fd int) {
	head := make([]byte, headOfFile+4)
	if n, err := unix.Pread(fd, head, 0); n != len(head) || err != nil {
		return
	}
	if binary.LittleEndian.Uint64(head) == 0 {
		return // nothing was refused, and reading more would give the file memory
	}
	b := make([]byte, FileSize)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return
	}
	l.read(b[:n])
}

// read adds what it can decode.
func (l *Log) read(b []byte) {
	if len(b) < headOfFile {
		return
	}
	d := pack.NewDecoder(b)
	more := d.Uint32()
	for d.More() {
		times := d.Uint32()
		if times == 0 {
			break
		}
		r, ok := decode(d.String(FileSize))
		if !ok || !d.OK() {
			break
		}
		r.Times = int(min(times, 1<<31-1))
		l.Add(r)
	}
	l.AddAll(nil, int(min(more, 1<<31-1)))
}

func decode(b string) (r Refusal, ok bool) {
	d := pack.NewDecoder([]byte(b))
	r.Layer, r.Operation, r.Need = Layer(d.String(FileSize)), Operation(d.String(FileSize)), Need(d.String(FileSize))
	d.Require(slices.Contains(Layers(), r.Layer) && slices.Contains(operations, r.Operation) && slices.Contains(needs, r.Need))
	r.Subject, r.Reason, r.At = d.String(FileSize), d.String(FileSize), d.String(FileSize)
	return r, d.End() == nil
}

// Text returns at most limit bytes of a text, and … if there is more. It has no characters that move a
// cursor or begin a line.
func Text(s string, limit int) string {
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
