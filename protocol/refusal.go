package protocol

import (
	"encoding/json"
	"math"

	"github.com/execagent/execagent/internal/strictjson"
)

// Refusals are what a sandbox has refused to a process, as far as that is known (sandbox.md 9.3).
type Refusals struct {
	List []Refusal `json:"list"`
	More int       `json:"more,omitempty"` // refusals that are not in List
	// Note says what the sandbox allows, if the process may have failed because of its sandbox and nothing
	// is known of that. It is for a model.
	Note string `json:"note,omitempty"`
}

// Refusal is something that a process has tried, once or several times.
type Refusal struct {
	Layer     string `json:"layer"`           // file, socket, network, program, limit or ceiling
	Operation string `json:"operation"`       // such as read, write, create, connect to, execute
	Subject   string `json:"subject"`         // the path, the host with its port, the program
	Reason    string `json:"reason"`          // the rule that has refused it, or its justification
	Needs     string `json:"needs,omitempty"` // what would have to be allowed: read, write, host or request; "": nothing would help
	At        string `json:"at,omitempty"`    // the path, host or request of Needs
	Times     int    `json:"times"`
	Text      string `json:"text"` // all of it in one line, for a model
}

// append appends the member, unless r is nil.
func (r *Refusals) append(dst []byte) []byte {
	if r == nil {
		return dst
	}
	encoded, err := json.Marshal(r)
	if err != nil {
		return dst // there are only strings and numbers
	}
	return append(append(dst, `,"refusals":`...), encoded...)
}

// maxRefusals is how many refusals of a process a client takes.
const maxRefusals = 1024

// refusals reads the member refusals, which may be absent.
func refusals(o *strictjson.Object) (r *Refusals) {
	o.OptIn("refusals", func(o *strictjson.Object) {
		r = &Refusals{List: []Refusal{}, More: count(o, "more"), Note: optText(o, "note")}
		o.Each("list", func(o *strictjson.Object) {
			if len(r.List) >= maxRefusals {
				r.More = min(r.More, math.MaxInt32-1) + 1
				return
			}
			r.List = append(r.List, Refusal{
				Layer: o.String("layer"), Operation: o.String("operation"), Subject: o.String("subject"), Reason: o.String("reason"),
				Needs: optText(o, "needs"), At: optText(o, "at"), Times: count(o, "times"), Text: o.String("text"),
			})
		})
	})
	return r
}

func optText(o *strictjson.Object, name string) string {
	if s := o.OptString(name); s != nil {
		return *s
	}
	return ""
}
