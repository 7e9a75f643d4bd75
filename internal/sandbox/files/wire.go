package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/pack"
)

// The agent and an fs helper exchange packets over one SOCK_SEQPACKET pair. The
// helper has its end as descriptors 0 and 1. Descriptor 2 is a pipe to the agent's
// log. Descriptor 3 is a sealed memfd with the [setup], which the helper reads and
// closes first.
//
//	agent                                  helper
//
//	                                       ready: layers       once, first; number 0
//	                                       refused: reason     instead, and it exits
//
//	openRead: path, links                  done + one descriptor
//	openWrite: path, links, new, old,      done + one descriptor
//	           private
//	createDirectory, remove, copy, rename  done
//	stat: path, links                      done: metadata
//	canonicalize: path, missing            done: path
//	readDirectory: path, details           more: entries ... done: entries
//	walk: root, options                    more: items ... done: items, truncated
//	discover: root                         more: bytes ... done: bytes, a packed discovery.Root
//	search: root, options                  more: bytes ... done: bytes, a packed fsops.SearchResult
//	(each of these)                        failed: call, path, errno or text
//	(each of these)                        refused: text       an fsops.InvalidError
//
//	cancel                                 nothing: the request of that number still
//	                                       gets its one last answer, sooner
//	ping                                   pong, at once
//
// The agent chooses the number of each request. The numbers of the requests in flight
// differ in their low [slotBits] bits. Answers come in any order. A malformed packet
// ends the helper, whichever side notices it. The agent trusts no answer, and it
// bounds the total size of the answers to one request.
//
// Integers are little-endian; a string is its length in 4 bytes and its bytes;
// a bool is one byte, 0 or 1.

const (
	// maxPacket is the largest answer, in bytes.
	maxPacket = 64 << 10
	// maxPath is the longest path of a request, in bytes. It is more than PATH_MAX,
	// and the kernel accepts no path that is longer than PATH_MAX.
	maxPath = 8 << 10
	// maxRequest is the largest request, which has a path and the patterns of a search.
	maxRequest = 2*maxPath + maxSearchWords + 256
	// maxText is the longest text of an error, in bytes. A path with its
	// quotation marks and escapes fits.
	maxText = 40 << 10

	// slotBits is the number of low bits in which requests in flight differ.
	slotBits = 4
	// maxInFlight is the number of requests that a helper works on at once. The helper
	// has one more reader, which receives cancel and ping.
	maxInFlight = 1 << slotBits
)

// op is the operation that a request asks for.
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
	opDiscover
	opSearch
	opCancel
	opPing
)

// cancellable reports whether the helper looks at a cancel while it works.
func (o op) cancellable() bool {
	return o == opWalk || o == opDiscover || o == opSearch || o == opRemove || o == opCopy
}

// verb returns the Op of the fs.PathError for a request that the agent itself rejects.
func (o op) verb() string {
	switch o {
	case opCreateDirectory:
		return "mkdir"
	case opStat:
		return "stat"
	case opCanonicalize:
		return "canonicalize"
	case opWalk, opDiscover:
		return "walk"
	case opSearch:
		return "search"
	case opRemove:
		return "remove"
	case opCopy:
		return "copy"
	case opRename:
		return "rename"
	}
	return "open"
}

// request is one packet of the agent. The op decides which of the fields are sent.
type request struct {
	id       uint32
	op       op
	path, to string
	links    fsops.Links
	writing  fsops.Writing // of openWrite
	missing  bool          // of canonicalize
	details  bool          // of readDirectory
	// recursive of createDirectory, remove and copy.
	recursive bool
	// force of remove, replace of rename.
	force bool
	walk  fsops.WalkOptions // Size is not sent
	// search of search.
	search fsops.SearchOptions
}

// append encodes r at the end of b.
func (r *request) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, r.id)
	b = append(b, byte(r.op))
	switch r.op {
	case opCancel, opPing:
		return b
	}
	b = pack.AppendString(b, r.path)
	switch r.op {
	case opOpenRead, opStat:
		b = append(b, byte(r.links))
	case opOpenWrite:
		b = append(b, byte(r.writing.Links), pack.Bool(r.writing.New), pack.Bool(r.writing.Old), pack.Bool(r.writing.Private))
	case opCanonicalize:
		b = append(b, pack.Bool(r.missing))
	case opReadDirectory:
		b = append(b, pack.Bool(r.details))
	case opCreateDirectory:
		b = append(b, pack.Bool(r.recursive), byte(r.links))
	case opRemove:
		b = append(b, pack.Bool(r.recursive), pack.Bool(r.force), byte(r.links))
	case opCopy:
		b = pack.AppendString(b, r.to)
		b = append(b, pack.Bool(r.recursive))
	case opRename:
		b = pack.AppendString(b, r.to)
		b = append(b, pack.Bool(r.force))
	case opWalk:
		b = binary.LittleEndian.AppendUint64(b, r.walk.MaxDepth)
		b = binary.LittleEndian.AppendUint64(b, r.walk.MaxDirectories)
		b = binary.LittleEndian.AppendUint64(b, r.walk.MaxEntries)
		b = append(b, pack.Bool(r.walk.FollowDirectoryLinks), pack.Bool(r.walk.PruneHidden))
		b = pack.AppendString(b, r.walk.AlsoNamed)
	case opSearch:
		b = appendSearch(b, &r.search)
	}
	return b
}

// decodeRequest is the reverse of request.append.
func decodeRequest(packet []byte) (request, error) {
	d := newDecoder(packet)
	r := request{id: d.Uint32(), op: op(d.Byte())}
	switch r.op {
	case opCancel, opPing:
	case opDiscover:
		r.path = d.String(maxPath)
	case opCanonicalize:
		r.path, r.missing = d.String(maxPath), d.Bool()
	case opReadDirectory:
		r.path, r.details = d.String(maxPath), d.Bool()
	case opOpenRead, opStat:
		r.path, r.links = d.String(maxPath), d.links()
	case opOpenWrite:
		r.path = d.String(maxPath)
		r.writing = fsops.Writing{Links: d.links(), New: d.Bool(), Old: d.Bool(), Private: d.Bool()}
	case opCreateDirectory:
		r.path, r.recursive, r.links = d.String(maxPath), d.Bool(), d.links()
	case opRemove:
		r.path, r.recursive, r.force, r.links = d.String(maxPath), d.Bool(), d.Bool(), d.links()
	case opCopy:
		r.path, r.to, r.recursive = d.String(maxPath), d.String(maxPath), d.Bool()
	case opRename:
		r.path, r.to, r.force = d.String(maxPath), d.String(maxPath), d.Bool()
	case opWalk:
		r.path = d.String(maxPath)
		r.walk.MaxDepth, r.walk.MaxDirectories, r.walk.MaxEntries = d.Uint64(), d.Uint64(), d.Uint64()
		r.walk.FollowDirectoryLinks, r.walk.PruneHidden = d.Bool(), d.Bool()
		r.walk.AlsoNamed = d.String(maxPath)
	case opSearch:
		r.path, r.search = d.String(maxPath), d.search()
	default:
		d.Require(false)
	}
	if err := d.End(); err != nil {
		return request{}, fmt.Errorf("request of operation %d: %w", r.op, err)
	}
	return r, nil
}

// status is the kind of an answer. It also says whether more packets of the answer follow.
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

// appendError appends the whole answer that reports err.
func appendError(b []byte, id uint32, err error) []byte {
	if invalid, ok := errors.AsType[fsops.InvalidError](err); ok {
		return pack.AppendString(appendAnswer(b, id, statusRefused), clip(invalid.Text, maxText))
	}
	b = appendAnswer(b, id, statusFailed)
	var call, path string
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		call, path, err = pe.Op, pe.Path, pe.Err
	}
	b = pack.AppendString(b, clip(call, maxPath))
	b = pack.AppendString(b, clip(path, maxPath))
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno > 0 && errno <= maxErrno {
		return binary.LittleEndian.AppendUint32(b, uint32(errno))
	}
	b = binary.LittleEndian.AppendUint32(b, 0)
	return pack.AppendString(b, clip(err.Error(), maxText))
}

// maxErrno is MAX_ERRNO of linux/err.h.
const maxErrno = 4095

// decodeFailed returns the error that the body of a failed answer reports, in the form in
// which fsops returned it. bad says that the encoding is wrong.
func decodeFailed(body []byte) (told, bad error) {
	d := newDecoder(body)
	call, path, errno := d.String(maxPath), d.String(maxPath), d.Uint32()
	switch {
	case errno == 0:
		told = errors.New(d.String(maxText))
	case errno <= maxErrno:
		told = syscall.Errno(errno)
	default:
		d.Require(false)
	}
	if err := d.End(); err != nil {
		return nil, err
	}
	if call != "" || path != "" {
		told = &fs.PathError{Op: call, Path: path, Err: told}
	}
	return told, nil
}

// decodeText decodes the body of a refused answer.
func decodeText(body []byte) (string, error) {
	d := newDecoder(body)
	text := d.String(maxText)
	return text, d.End()
}

// layerSeparator is between the layers of a ready answer, which are sent as one string.
const layerSeparator = ","

func encodeReady(layers []string) []byte {
	return pack.AppendString(appendAnswer(nil, 0, statusReady), strings.Join(layers, layerSeparator))
}

// decodeLayers decodes the body of a ready answer, which must have at least one layer.
func decodeLayers(body []byte) ([]string, error) {
	text, err := decodeText(body)
	if err == nil && text == "" {
		err = pack.ErrMalformed
	}
	return strings.Split(text, layerSeparator), err
}

func appendMetadata(b []byte, m fsops.Metadata) []byte {
	b = append(b, pack.Bool(m.IsDirectory), pack.Bool(m.IsFile), pack.Bool(m.IsSymlink))
	b = binary.LittleEndian.AppendUint64(b, m.Size)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.CreatedAtMs))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.ModifiedAtMs))
	b = append(b, byte(m.Type), pack.Bool(m.Known))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Mode))
	b = binary.LittleEndian.AppendUint32(b, m.UID)
	b = binary.LittleEndian.AppendUint32(b, m.GID)
	return pack.AppendString(b, clip(m.Target, maxPath))
}

func (d *decoder) metadata() fsops.Metadata {
	return fsops.Metadata{
		IsDirectory: d.Bool(), IsFile: d.Bool(), IsSymlink: d.Bool(),
		Size:        d.Uint64(),
		CreatedAtMs: int64(d.Uint64()), ModifiedAtMs: int64(d.Uint64()),
		Type: d.fileType(), Known: d.Bool(), Mode: d.mode(),
		UID: d.Uint32(), GID: d.Uint32(),
		Target: d.String(maxPath),
	}
}

// fileType decodes a type, one of those of getdents(2).
func (d *decoder) fileType() fsops.Type {
	t := d.Byte()
	d.Require(t <= unix.DT_SOCK)
	return fsops.Type(t)
}

// mode decodes permissions and the three bits above them.
func (d *decoder) mode() uint16 {
	m := d.Uint32()
	d.Require(m <= 0o7777)
	return uint16(m)
}

// Kinds of the entries that readDirectory and walk list.
const (
	kindOther byte = iota
	kindFile
	kindDirectory
	kindError // of a walk: an errno, or 0 for fsops.ErrNotUTF8, follows
)

// detailed is added to the kind of an entry whose details follow.
const detailed byte = 1 << 7

func appendEntry(b []byte, e fsops.DirEntry) []byte {
	kind := kindOther
	switch {
	case e.IsDirectory:
		kind = kindDirectory
	case e.IsFile:
		kind = kindFile
	}
	if e.Type == fsops.UnknownType {
		return pack.AppendString(append(b, kind), e.Name)
	}
	b = pack.AppendString(append(b, kind|detailed), e.Name)
	b = append(b, byte(e.Type), pack.Bool(e.Known))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.Mode))
	b = binary.LittleEndian.AppendUint64(b, e.Size)
	return binary.LittleEndian.AppendUint64(b, uint64(e.ModifiedAtMs))
}

func (d *decoder) entry() fsops.DirEntry {
	kind := d.Byte()
	details := kind&detailed != 0
	kind &^= detailed
	d.Require(kind <= kindDirectory)
	e := fsops.DirEntry{
		Name:        d.String(maxPacket),
		IsDirectory: kind == kindDirectory,
		IsFile:      kind == kindFile,
	}
	if details {
		e.Type, e.Known, e.Mode = d.fileType(), d.Bool(), d.mode()
		e.Size, e.ModifiedAtMs = d.Uint64(), int64(d.Uint64())
	}
	return e
}

// listedSize is what an entry counts against the bound of a listing.
func listedSize(e *fsops.DirEntry) int {
	n := len(e.Name) + entryAllowance
	if e.Type != fsops.UnknownType {
		n += detailAllowance
	}
	return n
}

// walkItem is an entry or an error of a walk.
type walkItem struct {
	path string
	kind byte
	err  error // of kindError
}

func (i walkItem) append(b []byte) []byte {
	b = pack.AppendString(append(b, i.kind), i.path)
	if i.kind == kindError {
		// 0 stands for fsops.ErrNotUTF8. The other errors of a View have an errno.
		errno, ok := errors.AsType[syscall.Errno](i.err)
		if !ok && !errors.Is(i.err, fsops.ErrNotUTF8) {
			errno = syscall.EIO
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(errno))
	}
	return b
}

func (d *decoder) walkItem() walkItem {
	i := walkItem{kind: d.Byte(), path: d.String(maxPacket)}
	switch i.kind {
	case kindFile, kindDirectory:
	case kindError:
		errno := d.Uint32()
		d.Require(errno <= maxErrno)
		i.err = syscall.Errno(errno)
		if errno == 0 {
			i.err = fsops.ErrNotUTF8
		}
	default:
		d.Require(false)
	}
	return i
}

func clip(s string, n int) string { return s[:min(n, len(s))] }

// decoder decodes a packet.
type decoder struct{ pack.Decoder }

func newDecoder(packet []byte) decoder { return decoder{pack.NewDecoder(packet)} }

func (d *decoder) links() fsops.Links {
	l := fsops.Links(d.Byte())
	d.Require(l <= fsops.KeepRefuse)
	return l
}
