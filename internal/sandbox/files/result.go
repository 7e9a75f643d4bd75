package files

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/pack"
)

// Bounds of the answers to one request together, in bytes. They are counted as fsops counts
// them: the bytes of all names and paths, and an allowance for each.
const (
	maxListing     = fsops.MaxDirectorySize
	maxWalk        = fsops.MaxWalkSize
	entryAllowance = 64
	// detailAllowance is added for the details of an entry.
	detailAllowance = 128
)

// result holds the answer to a request.
type result struct {
	fd       int // -1: none
	metadata fsops.Metadata
	path     string
	entries  []fsops.DirEntry // of readDirectory
	items    []walkItem
	packed   []byte // of discover and search
	// truncated says that the walk is not complete.
	truncated bool
	size      int // of entries or items, as the bounds count it
}

// take adds the body of one packet of the answer to a request for o. last reports whether
// that packet was the last one, and told is the error that the answer reports. err says that
// the packet is malformed. If o returns a descriptor, take moves it from fd to r and sets fd
// to -1.
func (r *result) take(o op, s status, body []byte, fd *int) (last bool, told, err error) {
	opens := s == statusDone && (o == opOpenRead || o == opOpenWrite)
	if opens != (*fd >= 0) {
		return false, nil, fmt.Errorf("status %d with or without a descriptor: %w", s, pack.ErrMalformed)
	}
	switch s {
	case statusFailed:
		told, err = decodeFailed(body)
		return true, told, err
	case statusRefused:
		text, err := decodeText(body)
		return true, fsops.InvalidError{Text: text}, err
	case statusDone, statusMore:
	default:
		return false, nil, fmt.Errorf("status %d: %w", s, pack.ErrMalformed)
	}
	if s == statusMore && o != opReadDirectory && o != opWalk && o != opDiscover && o != opSearch {
		return false, nil, fmt.Errorf("more than one packet: %w", pack.ErrMalformed)
	}
	d := newDecoder(body)
	switch o {
	case opOpenRead, opOpenWrite:
		r.fd, *fd = *fd, -1 // finish checks it: see own
	case opStat:
		r.metadata = d.metadata()
	case opCanonicalize:
		r.path = d.String(maxPacket)
	case opReadDirectory:
		err = r.takeEntries(&d)
	case opWalk:
		r.truncated = d.Bool()
		d.Require(!r.truncated || s == statusDone)
		err = r.takeItems(&d)
	case opDiscover:
		return s == statusDone, nil, r.takePacked(body, discovery.MaxPacked)
	case opSearch:
		return s == statusDone, nil, r.takePacked(body, maxSearch)
	}
	if err == nil {
		err = d.End()
	}
	return s == statusDone, nil, err
}

func (r *result) takePacked(body []byte, most int) error {
	if len(r.packed)+len(body) > most {
		return fmt.Errorf("a packed answer of more than %d bytes", most)
	}
	if free := cap(r.packed) - len(r.packed); free < len(body) {
		r.packed = slices.Grow(r.packed, max(len(body), len(r.packed)))
	}
	r.packed = append(r.packed, body...)
	return nil
}

func (r *result) takeEntries(d *decoder) error {
	for d.More() {
		e := d.entry()
		if r.size += listedSize(&e); r.size > maxListing {
			return fmt.Errorf("a listing of more than %d bytes", maxListing)
		}
		r.entries = append(r.entries, e)
	}
	return nil
}

func (r *result) takeItems(d *decoder) error {
	for d.More() {
		i := d.walkItem()
		if r.size += len(i.path) + entryAllowance; r.size > maxWalk {
			return fmt.Errorf("a walk of more than %d bytes", maxWalk)
		}
		r.items = append(r.items, i)
	}
	return nil
}

// close closes the descriptor of a result that nobody gets.
func (r *result) close() {
	if r.fd >= 0 {
		unix.Close(r.fd)
		r.fd = -1
	}
}

// forget drops the lists of a result that nobody gets.
func (r *result) forget() { r.entries, r.items, r.packed = nil, nil, nil }
