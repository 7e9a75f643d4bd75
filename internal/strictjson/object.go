package strictjson

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// An Object reads the members of a JSON object that [Members] has checked. It compares names
// exactly and ignores unknown members, as the protocol requires; encoding/json would also accept
// names with other capitals. The Object keeps the first error about a missing member or a wrong
// type, so that a record is read member by member and checked once:
//
//	o.String("processId")
//	o.Bool("tty")
//	return o.Err()
//
// Accessors come in three forms. The plain form requires the member. With Opt in its name the
// member may be absent or null. With Default it may be absent, but not null.
type Object struct {
	path    string // path of this object inside params, for error texts
	members []member
	err     *Error
}

type member struct {
	name  []byte
	value []byte
}

// An Error says what is wrong with a member of an [Object], and names it:
// "a.b[1]: invalid type: number, expected a string".
type Error struct{ Message string }

func (e *Error) Error() string { return e.Message }

func errorf(format string, args ...any) *Error { return &Error{fmt.Sprintf(format, args...)} }

// UnmarshalPooled is like [Unmarshal], but raw was already checked as a part of a larger text: it
// is the params or result of a message. The Object is reused afterwards, so v must not keep it.
func UnmarshalPooled(raw []byte, v Unmarshaler) *Error {
	o := objects.Get().(*Object)
	defer o.recycle()
	*o = Object{members: o.members[:0]}
	if err := o.parse(raw); err != nil {
		return &Error{"params: " + err.Message}
	}
	v.UnmarshalObject(o)
	return o.err
}

// objects is a pool of Objects, each with its memory for members.
var objects = sync.Pool{New: func() any { return new(Object) }}

// recycle returns an object to the pool.
func (o *Object) recycle() {
	if cap(o.members) <= keptMembers {
		objects.Put(o)
	}
}

// ParseObject parses a checked JSON object. Members are slices of raw.
func ParseObject(raw []byte) (*Object, *Error) {
	o := new(Object)
	if err := o.parse(raw); err != nil {
		return nil, err
	}
	return o, nil
}

func (o *Object) parse(raw []byte) *Error {
	if len(raw) == 0 || raw[0] != '{' {
		return errorf("invalid type: %s, expected an object", TypeOf(raw))
	}
	eachMember(raw, func(name, value []byte) bool {
		o.members = append(o.members, member{name, value})
		return true
	})
	return nil
}

// Only records an error if a member has another name than these. A name with other capitals is
// another name.
func (o *Object) Only(names ...string) {
	for _, m := range o.members {
		if o.err == nil && !slices.Contains(names, string(m.name)) {
			o.err = errorf("unknown field `%s%.128s`, expected one of %s", o.path, m.name, quoteAll(names))
		}
	}
}

// Once records an error if the object has one of these names more than once. Only the object of
// [UnmarshalRepeats] can.
func (o *Object) Once(names ...string) {
	for _, name := range names {
		n := 0
		for i := range o.members {
			if string(o.members[i].name) == name {
				n++
			}
		}
		if n > 1 {
			o.Fail(name, "duplicate field")
		}
	}
}

// Err returns the first error, or nil if there was none.
func (o *Object) Err() *Error { return o.err }

// Fail records an error about a member. If the Object already has an error, it keeps that error.
func (o *Object) Fail(name, format string, args ...any) {
	if o.err == nil {
		o.err = errorf("%s%s: %s", o.path, name, fmt.Sprintf(format, args...))
	}
}

// raw returns the text of a member's value, or nil if the member is absent.
func (o *Object) raw(name string) []byte {
	for i := range o.members {
		if string(o.members[i].name) == name {
			return o.members[i].value
		}
	}
	return nil
}

// Require returns the text of a member's value. A missing member is an error.
func (o *Object) Require(name string) []byte {
	raw := o.raw(name)
	if raw == nil && o.err == nil {
		o.err = errorf("missing field `%s%s`", o.path, name)
	}
	return raw
}

// First returns the name of the first member, for the error about an object that
// should have no members.
func (o *Object) First() (name []byte, ok bool) {
	if len(o.members) == 0 {
		return nil, false
	}
	return o.members[0].name, true
}

// Present reports whether the member exists, even if it is null.
func (o *Object) Present(name string) bool { return o.raw(name) != nil }

// Has reports whether the member exists and is not null.
func (o *Object) Has(name string) bool {
	raw := o.raw(name)
	return raw != nil && raw[0] != 'n'
}

func (o *Object) wrongType(name string, raw []byte, want string) {
	o.Fail(name, "invalid type: %s, expected %s", TypeOf(raw), want)
}

func (o *Object) asString(name string, raw []byte) string {
	if raw == nil {
		return ""
	}
	if raw[0] != '"' {
		o.wrongType(name, raw, "a string")
		return ""
	}
	return Text(raw)
}

// String reads a required string.
func (o *Object) String(name string) string { return o.asString(name, o.Require(name)) }

// OptString reads a string. It returns nil if the member is absent or null.
func (o *Object) OptString(name string) *string {
	if !o.Has(name) {
		return nil
	}
	return new(o.String(name))
}

func (o *Object) asBool(name string, raw []byte) bool {
	if raw == nil {
		return false
	}
	if raw[0] != 't' && raw[0] != 'f' {
		o.wrongType(name, raw, "a boolean")
	}
	return raw[0] == 't'
}

// Bool reads a required boolean.
func (o *Object) Bool(name string) bool { return o.asBool(name, o.Require(name)) }

// BoolDefault reads a boolean. It returns value if the member is absent.
func (o *Object) BoolDefault(name string, value bool) bool {
	if raw := o.raw(name); raw != nil {
		return o.asBool(name, raw)
	}
	return value
}

// OptBool reads a boolean. It returns value if the member is absent or null.
func (o *Object) OptBool(name string, value bool) bool {
	if !o.Has(name) {
		return value
	}
	return o.Bool(name)
}

// Int64 reads a required signed integer.
func (o *Object) Int64(name string) int64 {
	raw := o.Require(name)
	if raw == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		o.notInteger(name, raw)
	}
	return n
}

// Uint64 reads a required unsigned integer.
func (o *Object) Uint64(name string) uint64 {
	raw := o.Require(name)
	if raw == nil {
		return 0
	}
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		o.notInteger(name, raw)
	}
	return n
}

func (o *Object) notInteger(name string, raw []byte) {
	if TypeOf(raw) != "number" {
		o.wrongType(name, raw, "an integer")
		return
	}
	o.Fail(name, "invalid number %.32s, expected an integer in range", raw)
}

// OptUint64 reads an unsigned integer. It returns nil if the member is absent or null.
func (o *Object) OptUint64(name string) *uint64 {
	if !o.Has(name) {
		return nil
	}
	return new(o.Uint64(name))
}

// OptUint16 reads an unsigned 16-bit integer. It returns nil if the member is absent or null.
func (o *Object) OptUint16(name string) *uint16 {
	n := o.OptUint64(name)
	if n == nil {
		return nil
	}
	if *n > 1<<16-1 {
		o.Fail(name, "%d is out of range, at most 65535", *n)
	}
	return new(uint16(*n))
}

// OneOf reads a required string that must be one of words.
func (o *Object) OneOf(name string, words ...string) string {
	s := o.String(name)
	if o.err != nil {
		return s
	}
	if slices.Contains(words, s) {
		return s
	}
	o.Fail(name, "unknown variant `%.64s`, expected one of %s", s, quoteAll(words))
	return s
}

// OneOfDefault reads a string that must be one of words. It returns the first word if the member is
// absent.
func (o *Object) OneOfDefault(name string, words ...string) string {
	if o.raw(name) == nil {
		return words[0]
	}
	return o.OneOf(name, words...)
}

func quoteAll(words []string) string {
	var b []byte
	for i, w := range words {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(append(append(b, '`'), w...), '`')
	}
	return string(b)
}

// Base64 reads and decodes a required string of strict base64.
func (o *Object) Base64(name string) []byte { return o.base64(name, false) }

// Base64InPlace is Base64 without a copy: the bytes overwrite their text in the message. They are
// valid only as long as the message, and the member can be read only once.
func (o *Object) Base64InPlace(name string) []byte { return o.base64(name, true) }

func (o *Object) base64(name string, inPlace bool) []byte {
	raw := o.Require(name)
	if raw == nil {
		return nil
	}
	if raw[0] != '"' {
		o.wrongType(name, raw, "a string")
		return nil
	}
	content := stringContent(raw)
	var out []byte
	if inPlace {
		out = content
	} else {
		out = make([]byte, 0, base64.StdEncoding.DecodedLen(len(content)))
	}
	b, err := decodeBase64(out, content)
	if err != nil {
		o.Fail(name, "invalid base64: %v", err)
	}
	return b
}

// Base64Apart is like Base64InPlace, for a record that has its own error for bad base64. It returns
// an error of decoding as err and does not record it in the Object.
func (o *Object) Base64Apart(name string) (b []byte, err error) {
	raw := o.Require(name)
	if raw == nil {
		return nil, nil
	}
	if raw[0] != '"' {
		o.wrongType(name, raw, "a string")
		return nil, nil
	}
	content := stringContent(raw)
	return decodeBase64(content, content)
}

// OptBase64 reads base64. It returns nil if the member is absent or null.
func (o *Object) OptBase64(name string) []byte {
	if !o.Has(name) {
		return nil
	}
	return o.Base64(name)
}

// Parse reads a required string and passes it to parse. An error of parse becomes the error about
// the member.
func (o *Object) Parse(name string, parse func(string) error) {
	o.parseString(name, o.Require(name), parse)
}

// ParseEach passes each string of a required array to parse, as [Object.Parse] does.
func (o *Object) ParseEach(name string, parse func(string) error) {
	o.each(name, o.Require(name), func(name string, raw []byte) { o.parseString(name, raw, parse) })
}

func (o *Object) parseString(name string, raw []byte, parse func(string) error) {
	if raw == nil {
		return
	}
	s := o.asString(name, raw)
	if o.err != nil {
		return
	}
	if err := parse(s); err != nil {
		o.Fail(name, "%v", err)
	}
}

// Strings reads a required array of strings.
func (o *Object) Strings(name string) []string {
	out := []string{}
	o.each(name, o.Require(name), func(name string, raw []byte) { out = append(out, o.asString(name, raw)) })
	return out
}

// Words reads a required array of at most most strings. Each string must be one of words.
func (o *Object) Words(name string, most int, words ...string) []string {
	out := []string{}
	o.each(name, o.Require(name), func(name string, raw []byte) {
		word := o.asString(name, raw)
		switch {
		case !slices.Contains(words, word):
			o.Fail(name, "unknown variant `%.64s`, expected one of %s", word, quoteAll(words))
		case len(out) == most:
			o.Fail(name, "is one too many, at most %d", most)
		default:
			out = append(out, word)
		}
	})
	return out
}

// Uint16s reads a required array of at most most unsigned 16-bit integers.
func (o *Object) Uint16s(name string, most int) []uint16 {
	out := []uint16{}
	o.each(name, o.Require(name), func(name string, raw []byte) {
		n, err := strconv.ParseUint(string(raw), 10, 16)
		switch {
		case err != nil:
			o.notInteger(name, raw)
		case len(out) == most:
			o.Fail(name, "is one too many, at most %d", most)
		default:
			out = append(out, uint16(n))
		}
	})
	return out
}

// StringLists reads a required array of arrays of strings.
func (o *Object) StringLists(name string) [][]string {
	out := [][]string{}
	o.each(name, o.Require(name), func(name string, raw []byte) {
		list := []string{}
		o.each(name, raw, func(name string, raw []byte) { list = append(list, o.asString(name, raw)) })
		out = append(out, list)
	})
	return out
}

// each visits the elements of an array.
func (o *Object) each(name string, raw []byte, visit func(name string, raw []byte)) {
	if raw == nil || o.err != nil {
		return
	}
	if raw[0] != '[' {
		o.wrongType(name, raw, "a sequence")
		return
	}
	s := scanner{data: raw, pos: 1}
	for i := 0; o.err == nil; {
		s.space()
		switch s.data[s.pos] {
		case ']':
			return
		case ',':
			s.pos++
			continue
		}
		start := s.pos
		s.skip()
		visit(name+"["+strconv.Itoa(i)+"]", raw[start:s.pos])
		i++
	}
}

// StringMap reads a required object whose members are strings.
func (o *Object) StringMap(name string) map[string]string {
	out := map[string]string{}
	o.In(name, func(inner *Object) {
		for _, m := range inner.members {
			if m.value[0] != '"' {
				inner.wrongType(fmt.Sprintf("%.128q", m.name), m.value, "a string")
				return
			}
			out[string(m.name)] = Text(m.value)
		}
	})
	return out
}

// EachIn reads a required object with at most most members, which must be objects. It calls read in
// the order of the text.
func (o *Object) EachIn(name string, most int, read func(key string, o *Object)) {
	o.In(name, func(inner *Object) {
		if !inner.atMost(most) {
			return
		}
		for _, m := range inner.members {
			inner.inside(fmt.Sprintf("%.128q", m.name), m.value, func(o *Object) { read(string(m.name), o) })
		}
	})
}

// WordMap reads a required object with at most most members. Each value must be one of words.
func (o *Object) WordMap(name string, most int, words ...string) map[string]string {
	out := map[string]string{}
	o.In(name, func(inner *Object) {
		if !inner.atMost(most) {
			return
		}
		for _, m := range inner.members {
			key := fmt.Sprintf("%.128q", m.name)
			word := inner.asString(key, m.value)
			if !slices.Contains(words, word) {
				inner.Fail(key, "unknown variant `%.64s`, expected one of %s", word, quoteAll(words))
				return
			}
			out[string(m.name)] = word
		}
	})
	return out
}

// atMost records an error if the object has more than n members. It reports whether the Object has
// no error.
func (o *Object) atMost(n int) bool {
	if len(o.members) > n && o.err == nil {
		o.err = errorf("%s: has %d members, at most %d", strings.TrimSuffix(o.path, "."), len(o.members), n)
	}
	return o.err == nil
}

// In reads a required member that is an object.
func (o *Object) In(name string, read func(*Object)) { o.inside(name, o.Require(name), read) }

// OptIn reads an object that may be absent or null, and reports whether the member was an object.
func (o *Object) OptIn(name string, read func(*Object)) bool {
	if !o.Has(name) {
		return false
	}
	o.In(name, read)
	return true
}

// Each reads a required array of objects.
func (o *Object) Each(name string, read func(*Object)) {
	o.each(name, o.Require(name), func(name string, raw []byte) { o.inside(name, raw, read) })
}

func (o *Object) inside(name string, raw []byte, read func(*Object)) {
	if raw == nil || o.err != nil {
		return
	}
	inner, err := ParseObject(raw)
	if err != nil {
		o.wrongType(name, raw, "an object")
		return
	}
	inner.path = o.path + name + "."
	read(inner)
	o.err = inner.err
}
