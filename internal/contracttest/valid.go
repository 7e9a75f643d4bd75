package contracttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/execagent/execagent/protocol/contract"
)

// judge is the schema, resolved once: an object that has a record as the member of its name.
var judge = sync.OnceValue(func() *jsonschema.Resolved {
	var all jsonschema.Schema
	if err := json.Unmarshal(contract.Make("schema"), &all); err != nil {
		panic(err)
	}
	all.ID = ""
	all.Properties = map[string]*jsonschema.Schema{}
	for name := range all.Defs {
		all.Properties[name] = &jsonschema.Schema{Ref: "#/$defs/" + name}
	}
	resolved, err := all.Resolve(nil)
	if err != nil {
		panic(err)
	}
	return resolved
})

// Valid returns why a document is not valid for a record or type of the contract.
func Valid(name string, document []byte) error {
	if contract.Load().Named(name) == nil {
		return fmt.Errorf("the contract has no %s", name)
	}
	v, err := decode(document)
	if err != nil {
		return err
	}
	return judge().Validate(map[string]any{name: v})
}

// decode reads a document with its integers as integers. [encoding/json] makes floats of them, and so
// takes the last ones of 64 bits for larger ones.
func decode(document []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return exact(v), err
}

func exact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = exact(v[name])
		}
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return n
		}
		n, _ := v.Float64()
		return n
	}
	return v
}

// A Conversation judges the messages of one connection. One goroutine uses it.
type Conversation struct {
	asked map[string]asked // by id, of the client
}

// asked is a request of a client that has no answer yet.
type asked struct {
	method *contract.Method
	err    error // what is wrong with it
}

// message has the members of all kinds of message.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// Sent notes a message of the client. What is wrong with it is told when the agent answers it as if it were
// right.
func (c *Conversation) Sent(text []byte) {
	var m message
	if json.Unmarshal(text, &m) != nil || m.ID == nil {
		return
	}
	method := contract.Load().Method(m.Method)
	if method == nil || method.Server {
		return
	}
	if c.asked == nil {
		c.asked = map[string]asked{}
	}
	c.asked[string(m.ID)] = asked{method, params(method, m.Params)}
}

// Asks returns what is wrong with a message of a client that is no answer, and the capabilities that it makes
// use of. For a message that cannot be read they are empty.
func Asks(text []byte) (flags []string, err error) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	method := contract.Load().Method(m.Method)
	if method == nil || method.Server || (method.Result != nil) != (m.ID != nil) {
		return nil, fmt.Errorf("%.100q is nothing that a client sends in this way", m.Method)
	}
	if method.Flag != "" {
		flags = append(flags, method.Flag)
	}
	if v, err := decode(m.Params); err == nil {
		flags = used(method.Params, v, flags)
	}
	return flags, params(method, m.Params)
}

// used appends the flags of the members that a value has, apart from those that are null.
func used(t *contract.Type, v any, flags []string) []string {
	switch t.Kind {
	case contract.Union:
		for _, arm := range t.Arms {
			flags = used(arm, v, flags)
		}
	case contract.List:
		list, _ := v.([]any)
		for _, one := range list {
			flags = used(t.Elem, one, flags)
		}
	case contract.Map:
		object, _ := v.(map[string]any)
		for _, one := range object {
			flags = used(t.Elem, one, flags)
		}
	case contract.Ref:
		named := contract.Load().Named(t.Name)
		if named.Type != nil {
			return used(named.Type, v, flags)
		}
		object, _ := v.(map[string]any)
		for _, m := range named.Members {
			one := object[m.Name]
			if one == nil {
				continue
			}
			if m.Flag != "" && !slices.Contains(flags, m.Flag) {
				flags = append(flags, m.Flag)
			}
			flags = used(m.Type, one, flags)
		}
	}
	return flags
}

// params returns what is wrong with the params of a method.
func params(method *contract.Method, raw json.RawMessage) error {
	name := method.Params.Name
	if method.Params.Kind == contract.Any || name == "EmptyParams" && (len(raw) == 0 || string(raw) == "null") {
		return nil
	}
	if err := Valid(name, raw); err != nil {
		return fmt.Errorf("params of %s: %w", method.Name, err)
	}
	return nil
}

// Received returns what is wrong with a message of the agent.
func (c *Conversation) Received(text []byte) error {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	request, known := c.asked[string(m.ID)]
	switch {
	case m.Method != "":
		method := contract.Load().Method(m.Method)
		if method == nil || !method.Server || (method.Result != nil) != (m.ID != nil) {
			return fmt.Errorf("%s is nothing that an agent sends in this way", m.Method)
		}
		return params(method, m.Params)
	case m.Error != nil:
		return Valid("ErrorMessage", text)
	case !known:
		return fmt.Errorf("nobody has asked %s", m.ID)
	}
	delete(c.asked, string(m.ID))
	if request.err != nil {
		return fmt.Errorf("the agent has taken what the contract does not allow: %w", request.err)
	}
	if err := Valid(request.method.Result.Name, m.Result); err != nil {
		return fmt.Errorf("result of %s: %w", request.method.Name, err)
	}
	return Valid("ResultMessage", text)
}
