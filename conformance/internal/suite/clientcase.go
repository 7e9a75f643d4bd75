package suite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// A ClientCase is a part of an executor that is played for a client. conformance/README.md explains the members.
type ClientCase struct {
	Name    string `json:"name"`
	Area    string `json:"area"`
	Section string `json:"section"`
	About   string `json:"about"`
	Seconds int    `json:"seconds"`

	Argv  []string `json:"argv"`
	Stdin long     `json:"stdin"`
	Flags []string `json:"flags"`
	Play  []act    `json:"play"`

	Upgrade      string         `json:"upgrade"`
	Busy         int            `json:"busy"`
	Forget       bool           `json:"forget"`
	Lose         string         `json:"lose"`
	RefuseWrites int            `json:"refuseWrites"`
	Error        *refusal       `json:"error"`
	Answers      map[string]any `json:"answers"`
	Fails        bool           `json:"fails"`
	Survives     bool           `json:"survives"`
}

// An act is something that the played process or its executor does. It has one of the members but Twice and Lost.
type act struct {
	Out   *long `json:"out"`
	Err   *long `json:"err"`
	Twice bool  `json:"twice"`
	Lost  bool  `json:"lost"`

	Exit   *int `json:"exit"`
	Closed bool `json:"closed"`

	Stdin    int             `json:"stdin"`
	EOF      bool            `json:"eof"`
	Cut      bool            `json:"cut"`
	Resumed  bool            `json:"resumed"`
	Send     json.RawMessage `json:"send"`
	SendText *string         `json:"sendText"`
	Frame    []byte          `json:"frame"`
	Answered string          `json:"answered"`
	Silent   bool            `json:"silent"`
}

// long is a text, which a case may write as {"repeat": TEXT, "times": N}.
type long string

// maxLong bounds what a case prints or types at once.
const maxLong = 16 << 20

// UnmarshalJSON reads either form.
func (l *long) UnmarshalJSON(data []byte) error {
	var r struct {
		Repeat string `json:"repeat"`
		Times  int    `json:"times"`
	}
	if bytes.HasPrefix(data, []byte("{")) {
		if err := strictly(data, &r); err != nil {
			return err
		}
		if r.Times < 0 || r.Times*len(r.Repeat) > maxLong {
			return errors.New("times: the text is too long")
		}
		*l = long(strings.Repeat(r.Repeat, r.Times))
		return nil
	}
	return json.Unmarshal(data, (*string)(l))
}

// LoadClientCases reads the cases of all files of a folder, one a line.
func LoadClientCases(folder fs.FS) ([]*ClientCase, error) {
	var all []*ClientCase
	err := lines(folder, "*.jsonl", func(line []byte) error {
		c := &ClientCase{}
		all = append(all, c)
		if err := strictly(line, c); err != nil {
			return err
		}
		if len(c.Argv) == 0 || c.About == "" {
			return fmt.Errorf("case %q: it needs an argv and what it is about", c.Name)
		}
		return nil
	})
	return all, errors.Join(err, named(all, func(c *ClientCase) (string, string, string) { return c.Name, c.Area, c.Section }))
}

// printed returns what the process prints, and how it exits.
func (c *ClientCase) printed() (stdout, stderr string, code int) {
	var out, err strings.Builder
	for _, a := range c.Play {
		switch {
		case a.Out != nil:
			out.WriteString(string(*a.Out))
		case a.Err != nil:
			err.WriteString(string(*a.Err))
		case a.Exit != nil:
			code = *a.Exit
		}
	}
	return out.String(), err.String(), code
}
