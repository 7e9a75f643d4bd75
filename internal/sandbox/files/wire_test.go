package files

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

var requests = []request{
	{id: 1, op: opOpenRead, path: "/w/a", links: fsops.FollowLinks},
	{id: 2, op: opOpenWrite, path: "/w/\xff\n", writing: fsops.Writing{Links: fsops.RefuseLinks, New: true, Private: true}},
	{id: 3, op: opCreateDirectory, path: "/w/d", recursive: true},
	{id: 4, op: opStat, path: "/", links: fsops.KeepRefuse},
	{id: 5, op: opCanonicalize, path: strings.Repeat("/x", maxPath/2), missing: true},
	{id: 6, op: opReadDirectory, path: "/w", details: true},
	{id: 7, op: opWalk, path: "/w", walk: fsops.WalkOptions{
		MaxDepth: 64, MaxDirectories: 1 << 40, MaxEntries: 3, FollowDirectoryLinks: true, PruneHidden: true, AlsoNamed: "agents",
	}},
	{id: 8, op: opRemove, path: "/w", recursive: true, force: true, links: fsops.RefuseLinks},
	{id: 9, op: opCopy, path: "/a", to: "/b", recursive: true},
	{id: 10, op: opRename, path: "/a", to: "", force: true},
	{id: 11, op: opDiscover, path: "/w"},
	{id: 12, op: opCancel},
	{id: 13, op: opSearch, path: "/w", search: fsops.SearchOptions{
		Globs: slices.Repeat([]string{strings.Repeat("*", fsops.MaxSearchGlob)}, fsops.MaxSearchGlobs), Pattern: "\xff", Kind: "file",
		Literal: true, Hidden: true, Before: 1, After: 2, MaxMatches: 3, MaxFileMatches: 4, MaxFiles: 5, MaxDepth: 6, MaxLine: 7, Time: 8,
	}},
	{id: 1<<32 - 1, op: opPing},
}

// TestOperationsHaveRequests: the table above has a request of every operation.
func TestOperationsHaveRequests(t *testing.T) {
	t.Parallel()
	for o := op(1); o <= opPing; o++ {
		isOf := func(r request) bool { return r.op == o }
		rig.Is(t, slices.ContainsFunc(requests, isOf), true, "operation %d has a request in the table", o)
	}
}

func TestRequestsCross(t *testing.T) {
	t.Parallel()
	for _, want := range requests {
		packet := want.append(nil)
		rig.Is(t, len(packet) <= maxRequest, true, "operation %d has %d bytes, of at most %d", want.op, len(packet), maxRequest)
		got := rig.Value(decodeRequest(packet))
		rig.Same(t, "what was sent and what came", want, got, cmp.AllowUnexported(request{}))
		for n := range packet {
			rig.Is(t, rig.Err(decodeRequest(packet[:n])) != nil, true, "operation %d: %d of %d bytes are refused", want.op, n, len(packet))
		}
		rig.Is(t, rig.Err(decodeRequest(append(packet, 0))) != nil, true, "operation %d with a byte too many is refused", want.op)
	}
}

func TestRequestsRefused(t *testing.T) {
	t.Parallel()
	longest := request{op: opStat, path: strings.Repeat("x", maxPath)}
	tests := map[string][]byte{
		"nothing":           {},
		"no such operation": {1, 0, 0, 0, 0},
		"one too far":       {1, 0, 0, 0, byte(opPing) + 1},
		"a bool of 2":       append((&request{op: opCanonicalize, path: "/"}).append(nil)[:10], 2),
		"links of 4":        append((&request{op: opStat, path: "/"}).append(nil)[:10], 4),
		"a path too long":   (&request{op: opStat, path: longest.path + "x"}).append(nil),
		"a huge length":     {1, 0, 0, 0, byte(opStat), 0xff, 0xff, 0xff, 0xff, 'x', 0},
	}
	for name, packet := range tests {
		rig.Is(t, rig.Err(decodeRequest(packet)) != nil, true, "%s is refused", name)
	}
	rig.Is(t, rig.Err(decodeRequest(longest.append(nil))), nil, "a path of %d bytes", maxPath)
}

// TestErrorsCross: what fsops returns is what the agent sees.
func TestErrorsCross(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", maxText)
	tests := []struct {
		name       string
		sent, want error
	}{
		{"an errno", syscall.EROFS, syscall.EROFS},
		{"a path error", &fs.PathError{Op: "open", Path: "/w\xff", Err: syscall.EACCES}, &fs.PathError{Op: "open", Path: "/w\xff", Err: syscall.EACCES}},
		{"a path error of its own", &fs.PathError{Op: "remove", Path: "/w", Err: errors.New("moved")}, &fs.PathError{Op: "remove", Path: "/w", Err: errors.New("moved")}},
		{"a refusal", fsops.InvalidError{Text: "path is no file"}, fsops.InvalidError{Text: "path is no file"}},
		{"a long refusal", fsops.InvalidError{Text: long}, fsops.InvalidError{Text: long[:maxText]}},
		{"anything else", errors.New("odd"), errors.New("odd")},
		{"an impossible errno", syscall.Errno(5000), errors.New(syscall.Errno(5000).Error())},
		{"a very long path", &fs.PathError{Op: "stat", Path: long, Err: syscall.ENAMETOOLONG}, &fs.PathError{Op: "stat", Path: long[:maxPath], Err: syscall.ENAMETOOLONG}},
	}
	for _, tt := range tests {
		packet := appendError(nil, 7, tt.sent)
		rig.Is(t, len(packet) <= maxPacket, true, "%s: packet of %d bytes", tt.name, len(packet))
		d := newDecoder(packet)
		rig.Is(t, d.Uint32(), 7, "%s: number", tt.name)
		none := -1
		r := result{fd: -1}
		last, got, err := r.take(opStat, status(d.Byte()), d.Rest(), &none)
		if err != nil || !last {
			t.Errorf("%s: last %v, error %v", tt.name, last, err)
			continue
		}
		rig.Same(t, tt.name, tt.want.Error(), got.Error())
		want, wanted := errors.AsType[syscall.Errno](tt.want)
		errno, ok := errors.AsType[syscall.Errno](got)
		rig.Is(t, fmt.Sprint(errno, ok), fmt.Sprint(want, wanted), "%s: errno", tt.name)
		_, wanted = errors.AsType[fsops.InvalidError](tt.want)
		rig.Is(t, errors.As(got, new(fsops.InvalidError)), wanted, "%s: an InvalidError, of %T", tt.name, got)
	}
}

func TestAnswersRefused(t *testing.T) {
	t.Parallel()
	metadata := appendMetadata(nil, fsops.Metadata{IsFile: true, Size: 3})
	entry := appendEntry(nil, fsops.DirEntry{Name: "a", IsFile: true, Type: fsops.Regular})
	tests := []struct {
		name string
		op   op
		s    status
		body []byte
	}{
		{"ready for an answer", opStat, statusReady, nil},
		{"a pong for an answer", opStat, statusPong, nil},
		{"no such status", opStat, statusPong + 1, nil},
		{"status 0", opStat, 0, nil},
		{"no metadata", opStat, statusDone, nil},
		{"metadata cut off", opStat, statusDone, metadata[:len(metadata)-1]},
		{"metadata and more", opStat, statusDone, append(slices.Clip(metadata), 0)},
		{"metadata with a bool of 2", opStat, statusDone, append([]byte{2}, metadata[1:]...)},
		{"more of what has no parts", opStat, statusMore, metadata},
		{"something for nothing", opRemove, statusDone, []byte{0}},
		{"an open file without one", opOpenRead, statusDone, nil},
		{"a refusal without text", opStat, statusRefused, nil},
		{"an error without errno", opStat, statusFailed, make([]byte, 8)},
		{"an errno out of range", opStat, statusFailed, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0}},
		{"an entry cut off", opReadDirectory, statusMore, entry[:len(entry)-1]},
		{"an entry of no kind", opReadDirectory, statusDone, append([]byte{kindError}, entry[1:]...)},
		{"a walk without its flag", opWalk, statusDone, nil},
		{"a walk cut short in the middle", opWalk, statusMore, []byte{1}},
		{"a walk with an odd item", opWalk, statusDone, []byte{0, kindError + 1, 0, 0, 0, 0}},
		{"more of a search than there can be", opSearch, statusMore, make([]byte, maxSearch+1)},
		{"a walk with an odd errno", opWalk, statusDone, []byte{0, kindError, 0, 0, 0, 0, 0, 0x10, 0, 0}},
	}
	for _, tt := range tests {
		none := -1
		r := result{fd: -1}
		_, told, err := r.take(tt.op, tt.s, tt.body, &none)
		rig.Is(t, err != nil, true, "%s is refused, told %v", tt.name, told)
	}
}

// FuzzRequest: what decodes encodes to the same bytes.
func FuzzRequest(f *testing.F) {
	for _, r := range requests {
		f.Add(r.append(nil))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		r, err := decodeRequest(packet)
		if err != nil {
			return
		}
		rig.Is(t, string(r.append(nil)), string(packet), "the encoding of %+v", r)
	})
}

// FuzzAnswers feeds a request with answers that a helper made up. The input is
// packets, each behind its length in two bytes.
func FuzzAnswers(f *testing.F) {
	pack := func(packets ...[]byte) []byte {
		var b []byte
		for _, p := range packets {
			b = append(append(b, byte(len(p)), byte(len(p)>>8)), p...)
		}
		return b
	}
	entry := appendEntry(nil, fsops.DirEntry{Name: "a", IsFile: true})
	item := walkItem{path: "/w/a", kind: kindError, err: fsops.ErrNotUTF8}.append([]byte{0})
	f.Add(byte(opStat), pack(append([]byte{byte(statusDone)}, appendMetadata(nil, fsops.Metadata{Size: 1})...)))
	f.Add(byte(opReadDirectory), pack(append([]byte{byte(statusMore)}, entry...), append([]byte{byte(statusDone)}, entry...)))
	f.Add(byte(opWalk), pack(append([]byte{byte(statusMore)}, item...), []byte{byte(statusDone), 1}))
	f.Add(byte(opRemove), pack(appendError(nil, 0, &fs.PathError{Op: "remove", Path: "/w", Err: syscall.EBUSY})[answerHeader-1:]))
	f.Add(byte(opCopy), pack(appendError(nil, 0, fsops.InvalidError{Text: "no"})[answerHeader-1:]))
	f.Fuzz(func(t *testing.T, asked byte, packets []byte) {
		r := result{fd: -1}
		total := 0
		for len(packets) >= 3 {
			n := min(max(1, int(packets[0])|int(packets[1])<<8), len(packets)-2)
			packet := packets[2 : 2+n]
			packets = packets[2+n:]
			none := -1
			last, told, err := r.take(op(asked), status(packet[0]), packet[1:], &none)
			if err != nil {
				return
			}
			if total += n; r.size > 60*total+entryAllowance*total {
				t.Fatalf("%d bytes count as %d", total, r.size)
			}
			rig.Is(t, r.fd, -1, "a descriptor out of nothing")
			if told != nil && !last {
				t.Fatal("an error that is not the end")
			}
			if last {
				return
			}
		}
	})
}
