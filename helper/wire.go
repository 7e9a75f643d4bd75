package helper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/execagent/execagent/fsops"
)

// What the agent and an fs helper say to each other: packets over one
// SOCK_SEQPACKET pair, which is descriptors 0 and 1 of the helper. Descriptor 2
// is a pipe to the agent's log; descriptor 3 is a sealed memfd with the
// [setup], which the helper reads and closes first.
//
//	agent                                  helper
//
//	                                       ready: layers       once, first; number 0
//	                                       refused: reason     instead, and it exits
//
//	openRead, openWrite: path, links       done + one descriptor
//	createDirectory, remove, copy, rename  done
//	stat: path, links                      done: metadata
//	canonicalize: path                     done: path
//	readDirectory: path                    more: entries ... done: entries
//	walk: root, options                    more: items ... done: items, truncated
//	(each of these)                        failed: call, path, errno or text
//	(each of these)                        refused: text       an fsops.InvalidError
//
//	cancel                                 nothing: the request of that number still
//	                                       gets its one last answer, sooner
//	ping                                   pong, at once
//
// Requests have numbers of the agent's choice; the low [slotBits] bits of those
// in flight differ. Answers come in any order. A packet that is not as it is
// described here ends the helper, on whichever side it is noticed: the agent
// trusts nothing that it gets and bounds the sum of what belongs to one request.
//
// Integers are little-endian; a string is its length in 4 bytes and its bytes;
// a bool is one byte, 0 or 1.

const (
	// maxPacket is the largest answer, in bytes.
	maxPacket = 64 << 10
	// maxPath is the longest path of a request, in bytes: no path that is longer
	// than PATH_MAX means anything to the kernel.
	maxPath = 8 << 10
	// maxRequest is the largest request, which has two paths.
	maxRequest = 2*maxPath + 64
	// maxText is the longest text of an error, in bytes: a path and its
	// quotation marks and escapes.
	maxText = 40 << 10

	// slotBits is how many bits of a number tell requests in flight apart.
	slotBits = 4
	// maxInFlight is how many requests a helper works at, at once. The helper
	// has one more reader than that, which hears cancel and ping.
	maxInFlight = 1 << slotBits
)

// op is what a request asks for.
type op uint8

const (
	opOpenRead op = iota + 1
	opOpenWrite
	opCreateDirectory
	opStat
	opCanonicalize
	opReadDirectory
	opWalk
	opRemove
	opCopy
	opRename
	opCancel
	opPing
)

// cancellable tells whether the helper looks at a cancel while it works.
func (o op) cancellable() bool { return o == opWalk || o == opRemove || o == opCopy }

// verb is the Op of an fs.PathError for a path that is never sent.
func (o op) verb() string {
	switch o {
	case opCreateDirectory:
		return "mkdir"
	case opStat:
		return "stat"
	case opCanonicalize:
		return "canonicalize"
	case opWalk:
		return "walk"
	case opRemove:
		return "remove"
	case opCopy:
		return "copy"
	case opRename:
		return "rename"
	}
	return "open"
}

// request is one packet of the agent. Which fields count depends on op.
type request struct {
	id       uint32
	op       op
	path, to string
	links    fsops.Links
	// recursive of createDirectory, remove and copy.
	recursive bool
	// force of remove, replace of rename.
	force bool
	walk  fsops.WalkOptions // but for Size
}

// append encodes r at the end of b.
func (r *request) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, r.id)
	b = append(b, byte(r.op))
	switch r.op {
	case opCancel, opPing:
		return b
	}
	b = appendString(b, r.path)
	switch r.op {
	case opOpenRead, opOpenWrite, opStat:
		b = append(b, byte(r.links))
	case opCreateDirectory:
		b = append(b, flag(r.recursive), byte(r.links))
	case opRemove:
		b = append(b, flag(r.recursive), flag(r.force), byte(r.links))
	case opCopy:
		b = appendString(b, r.to)
		b = append(b, flag(r.recursive))
	case opRename:
		b = appendString(b, r.to)
		b = append(b, flag(r.force))
	case opWalk:
		b = binary.LittleEndian.AppendUint64(b, r.walk.MaxDepth)
		b = binary.LittleEndian.AppendUint64(b, r.walk.MaxDirectories)
		b = binary.LittleEndian.AppendUint64(b, r.walk.MaxEntries)
		b = append(b, flag(r.walk.FollowDirectoryLinks), flag(r.walk.PruneHidden))
	}
	return b
}

// decodeRequest is the reverse of request.append.
func decodeRequest(packet []byte) (request, error) {
	d := decoder{rest: packet}
	r := request{id: d.uint32(), op: op(d.byte())}
	switch r.op {
	case opCancel, opPing:
	case opCanonicalize, opReadDirectory:
		r.path = d.string(maxPath)
	case opOpenRead, opOpenWrite, opStat:
		r.path, r.links = d.string(maxPath), d.links()
	case opCreateDirectory:
		r.path, r.recursive, r.links = d.string(maxPath), d.bool(), d.links()
	case opRemove:
		r.path, r.recursive, r.force, r.links = d.string(maxPath), d.bool(), d.bool(), d.links()
	case opCopy:
		r.path, r.to, r.recursive = d.string(maxPath), d.string(maxPath), d.bool()
	case opRename:
		r.path, r.to, r.force = d.string(maxPath), d.string(maxPath), d.bool()
	case opWalk:
		r.path = d.string(maxPath)
		r.walk.MaxDepth, r.walk.MaxDirectories, r.walk.MaxEntries = d.uint64(), d.uint64(), d.uint64()
		r.walk.FollowDirectoryLinks, r.walk.PruneHidden = d.bool(), d.bool()
	default:
		d.bad = true
	}
	if err := d.end(); err != nil {
		return request{}, fmt.Errorf("request of operation %d: %w", r.op, err)
	}
	return r, nil
}

// status is what an answer says.
type status uint8

const (
	statusReady status = iota + 1
	statusDone
	statusMore
	statusFailed
	statusRefused
	statusPong
)

// answerHeader is the number and the status of an answer.
const answerHeader = 5

func appendAnswer(b []byte, id uint32, s status) []byte {
	return append(binary.LittleEndian.AppendUint32(b, id), byte(s))
}

// appendError encodes the whole answer that tells err.
func appendError(b []byte, id uint32, err error) []byte {
	if invalid, ok := errors.AsType[fsops.InvalidError](err); ok {
		return appendString(appendAnswer(b, id, statusRefused), clip(invalid.Text, maxText))
	}
	b = appendAnswer(b, id, statusFailed)
	var call, path string
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		call, path, err = pe.Op, pe.Path, pe.Err
	}
	b = appendString(b, clip(call, maxPath))
	b = appendString(b, clip(path, maxPath))
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno > 0 && errno <= maxErrno {
		return binary.LittleEndian.AppendUint32(b, uint32(errno))
	}
	b = binary.LittleEndian.AppendUint32(b, 0)
	return appendString(b, clip(err.Error(), maxText))
}

// maxErrno is MAX_ERRNO of linux/err.h.
const maxErrno = 4095

// decodeFailed is the error that the body of a failed answer tells: as fsops
// would have returned it. The second error is one of the encoding.
func decodeFailed(body []byte) (told, bad error) {
	d := decoder{rest: body}
	call, path, errno := d.string(maxPath), d.string(maxPath), d.uint32()
	switch {
	case errno == 0:
		told = errors.New(d.string(maxText))
	case errno <= maxErrno:
		told = syscall.Errno(errno)
	default:
		d.bad = true
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	if call != "" || path != "" {
		told = &fs.PathError{Op: call, Path: path, Err: told}
	}
	return told, nil
}

// decodeText is the body of a refused answer.
func decodeText(body []byte) (string, error) {
	d := decoder{rest: body}
	text := d.string(maxText)
	return text, d.end()
}

// Layers cross as one string.
const layerSeparator = ","

func encodeReady(layers []string) []byte {
	return appendString(appendAnswer(nil, 0, statusReady), strings.Join(layers, layerSeparator))
}

// decodeLayers is the body of a ready answer, which has at least one layer.
func decodeLayers(body []byte) ([]string, error) {
	text, err := decodeText(body)
	if err == nil && text == "" {
		err = errPacket
	}
	return strings.Split(text, layerSeparator), err
}

func appendMetadata(b []byte, m fsops.Metadata) []byte {
	b = append(b, flag(m.IsDirectory), flag(m.IsFile), flag(m.IsSymlink))
	b = binary.LittleEndian.AppendUint64(b, m.Size)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.CreatedAtMs))
	return binary.LittleEndian.AppendUint64(b, uint64(m.ModifiedAtMs))
}

func (d *decoder) metadata() fsops.Metadata {
	return fsops.Metadata{
		IsDirectory: d.bool(), IsFile: d.bool(), IsSymlink: d.bool(),
		Size:        d.uint64(),
		CreatedAtMs: int64(d.uint64()), ModifiedAtMs: int64(d.uint64()),
	}
}

// Kinds of what readDirectory and walk list.
const (
	kindOther byte = iota
	kindFile
	kindDirectory
	kindError // of a walk: an errno, or 0 for fsops.ErrNotUTF8, follows
)

func appendEntry(b []byte, e fsops.DirEntry) []byte {
	kind := kindOther
	switch {
	case e.IsDirectory:
		kind = kindDirectory
	case e.IsFile:
		kind = kindFile
	}
	return appendString(append(b, kind), e.Name)
}

func (d *decoder) entry() fsops.DirEntry {
	kind := d.byte()
	d.bad = d.bad || kind > kindDirectory
	return fsops.DirEntry{
		Name:        d.string(maxPacket),
		IsDirectory: kind == kindDirectory,
		IsFile:      kind == kindFile,
	}
}

// walkItem is an entry or an error of a walk.
type walkItem struct {
	path string
	kind byte
	err  error // of kindError
}

func (i walkItem) append(b []byte) []byte {
	b = appendString(append(b, i.kind), i.path)
	if i.kind == kindError {
		// Whatever else View finds has an errno too; 0 stands for a name only.
		errno, ok := errors.AsType[syscall.Errno](i.err)
		if !ok && !errors.Is(i.err, fsops.ErrNotUTF8) {
			errno = syscall.EIO
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(errno))
	}
	return b
}

func (d *decoder) walkItem() walkItem {
	i := walkItem{kind: d.byte(), path: d.string(maxPacket)}
	switch i.kind {
	case kindFile, kindDirectory:
	case kindError:
		errno := d.uint32()
		d.bad = d.bad || errno > maxErrno
		i.err = syscall.Errno(errno)
		if errno == 0 {
			i.err = fsops.ErrNotUTF8
		}
	default:
		d.bad = true
	}
	return i
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

func clip(s string, n int) string { return s[:min(n, len(s))] }

// errPacket is a packet that is not as the table on top has it.
var errPacket = errors.New("malformed packet")

// decoder takes a packet apart. What is missing reads as zero and makes it bad.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) take(n uint32) []byte {
	if d.bad || uint64(n) > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) bool() bool {
	b := d.byte()
	d.bad = d.bad || b > 1
	return b == 1
}

func (d *decoder) links() fsops.Links {
	l := fsops.Links(d.byte())
	d.bad = d.bad || l > fsops.RefuseLinks
	return l
}

func (d *decoder) uint32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) string(limit uint32) string {
	n := d.uint32()
	d.bad = d.bad || n > limit
	return string(d.take(n))
}

// end checks that all was there and nothing is left.
func (d *decoder) end() error {
	if d.bad || len(d.rest) > 0 {
		return errPacket
	}
	return nil
}
