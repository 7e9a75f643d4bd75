package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
)

// The errors of a Map quote nothing of the text, because it may be secret.
var (
	errNotObject = errors.New("is not a JSON object")
	errNotText   = errors.New("is not a string")
	errNotInt64  = errors.New("is not an integer in range")
	errNotTexts  = errors.New("is neither a string nor an array of strings")
)

// A Map is an object for a reader that reads only some members. Unlike in an [Object], an invalid
// member has no effect on other members. A Map can be encoded again.
type Map map[string]json.RawMessage

// ParseMap reads a text that should be one JSON object, by the rules of [Members].
// The values are copies.
func ParseMap(text []byte) (Map, error) {
	m := make(Map)
	isObject, err := Members(text, func(name, value []byte) { m[string(name)] = bytes.Clone(value) })
	if !isObject || err != nil {
		return nil, errNotObject
	}
	return m, nil
}

// Has reports whether the member exists and is not null.
func (m Map) Has(name string) bool { return len(m[name]) > 0 && m[name][0] != 'n' }

// Text returns a string. It returns "" if the member is absent or null.
func (m Map) Text(name string) (string, error) {
	switch {
	case !m.Has(name):
		return "", nil
	case m[name][0] != '"':
		return "", errNotText
	}
	return Text(m[name]), nil
}

// Int64 returns an integer that is written without fraction and exponent. It returns 0 if the
// member is absent or null.
func (m Map) Int64(name string) (int64, error) {
	if !m.Has(name) {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(m[name]), 10, 64)
	if err != nil {
		return 0, errNotInt64
	}
	return n, nil
}

// Texts returns the strings of a member that is one string or an array of strings. It returns none
// if the member is absent or null.
func (m Map) Texts(name string) ([]string, error) {
	if !m.Has(name) {
		return nil, nil
	}
	if s, err := m.Text(name); err == nil {
		return []string{s}, nil
	}
	o := Object{members: []member{{[]byte(name), m[name]}}}
	list := o.Strings(name)
	if o.Err() != nil {
		return nil, errNotTexts
	}
	return list, nil
}
