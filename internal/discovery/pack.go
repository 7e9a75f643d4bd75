package discovery

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/pack"
)

// MaxPacked bounds the result of [Root.Pack], in bytes: the files, of which a walk reads at most
// MaxBundle bytes, and room for all else, such as warnings.
const MaxPacked = MaxBundle + 16<<20

// Pack appends r to b, for another process of this program.
func (r *Root) Pack(b []byte) []byte {
	b = slices.Grow(b, r.Size()+256*(len(r.Skills)+len(r.Namespaces)+len(r.Warnings)+4))
	b = appendOptional(b, r.Failure, appendWarning)
	b = appendOptional(b, r.Plugin, func(b []byte, p Plugin) []byte {
		b = appendFile(b, p.Manifest)
		b = appendOptional(b, p.MCP, appendFile)
		return appendOptional(b, p.Apps, appendFile)
	})
	b = append(b, pack.Bool(r.Missing))
	b = appendList(b, r.Skills, func(b []byte, s Skill) []byte {
		b = appendFile(b, s.Instructions)
		return appendOptional(b, s.Metadata, appendFile)
	})
	b = appendList(b, r.Namespaces, appendFile)
	return appendList(b, r.Warnings, appendWarning)
}

// Unpack is the reverse of Pack. It does not trust b.
func Unpack(b []byte) (*Root, error) {
	d := pack.NewDecoder(b)
	r := &Root{Failure: readOptional(&d, readWarning)}
	r.Plugin = readOptional(&d, func(d *pack.Decoder) Plugin {
		return Plugin{Manifest: readFile(d), MCP: readOptional(d, readFile), Apps: readOptional(d, readFile)}
	})
	r.Missing = d.Bool()
	r.Skills = readList(&d, func(d *pack.Decoder) Skill {
		return Skill{Instructions: readFile(d), Metadata: readOptional(d, readFile)}
	})
	r.Namespaces = readList(&d, readFile)
	r.Warnings = readList(&d, readWarning)
	d.Require(r.Size() <= 2*MaxBundle) // the root's manifest is counted twice
	if err := d.End(); err != nil {
		return nil, err
	}
	return r, nil
}

func appendFile(b []byte, f File) []byte {
	return pack.AppendString(pack.AppendString(b, f.Path), f.Contents)
}

func readFile(d *pack.Decoder) File {
	return File{Path: d.String(MaxPacked), Contents: d.String(MaxFile)}
}

// appendWarning encodes a warning. Its errno is 0 if there is none, or if the error is
// fsops.ErrNotUTF8.
func appendWarning(b []byte, w Warning) []byte {
	errno, _ := errors.AsType[unix.Errno](w.Err)
	b = append(b, byte(w.Trouble), pack.Bool(errors.Is(w.Err, fsops.ErrNotUTF8)))
	b = binary.LittleEndian.AppendUint32(b, uint32(errno))
	return pack.AppendString(pack.AppendString(b, w.Path), w.Member)
}

func readWarning(d *pack.Decoder) Warning {
	w := Warning{Trouble: Trouble(d.Byte())}
	d.Require(w.Trouble < troubles)
	notUTF8, errno := d.Bool(), d.Uint32()
	const maxErrno = 4095 // MAX_ERRNO of linux/err.h
	d.Require(errno <= maxErrno && !(notUTF8 && errno != 0))
	switch {
	case notUTF8:
		w.Err = fsops.ErrNotUTF8
	case errno != 0:
		w.Err = unix.Errno(errno)
	}
	w.Path, w.Member = d.String(MaxPacked), d.String(MaxPacked)
	return w
}

func appendOptional[T any](b []byte, v *T, one func([]byte, T) []byte) []byte {
	if b = append(b, pack.Bool(v != nil)); v == nil {
		return b
	}
	return one(b, *v)
}

func readOptional[T any](d *pack.Decoder, one func(*pack.Decoder) T) *T {
	if !d.Bool() {
		return nil
	}
	return new(one(d))
}

func appendList[T any](b []byte, list []T, one func([]byte, T) []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for _, v := range list {
		b = one(b, v)
	}
	return b
}

func readList[T any](d *pack.Decoder, one func(*pack.Decoder) T) (list []T) {
	for range d.Uint32() {
		if !d.More() {
			d.Require(false)
			break
		}
		list = append(list, one(d))
	}
	return list
}
