package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

var (
	errNotObject = errors.New("is not a JSON object of the expected members")
	errNotString = errors.New("is not a string")
)

// decodeObject reads one JSON object that has exactly the members of want, each
// once, under exactly these names, and nothing after it. encoding/json alone would
// accept names in other capitals, and names that come twice. The values of want are
// pointers; a null leaves them as they are. The error repeats nothing of the
// content, which is secret.
func decodeObject(data []byte, want map[string]any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errNotObject
	}
	seen := make(map[string]bool, len(want))
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		into, known := want[name]
		if err != nil || !ok || !known || seen[name] || d.Decode(into) != nil {
			return errNotObject
		}
		seen[name] = true
	}
	if _, err := d.Token(); err != nil || len(seen) != len(want) {
		return errNotObject
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errNotObject
	}
	return nil
}

// members is a JSON object of which some members are of interest. Names are
// compared exactly. Of members with one name the last counts.
type members map[string]json.RawMessage

func decodeMembers(data []byte) (members, error) {
	var m members
	if json.Unmarshal(data, &m) != nil || m == nil {
		return nil, errNotObject
	}
	return m, nil
}

// text returns a string; missing and null are empty.
func (m members) text(name string) (string, error) {
	var s string
	if raw, ok := m[name]; ok && json.Unmarshal(raw, &s) != nil {
		return "", errNotString
	}
	return s, nil
}
