// Package contract has what a client and an agent say to each other, as data: every method, every
// record with its members, their types, bounds and descriptions. contract.txt is its home, and its
// head explains the language. [Load] returns what is in it.
//
// All that is published of the contract is made from it: a JSON Schema, a table of methods, an OpenRPC
// document, a page for readers, and the types of the clients in Python and TypeScript. [Formats] has
// them, and go generate writes them. Package protocol decodes; its tests compare the two.
package contract

import (
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
)

//go:generate sh -c "gzip -9n <contract.txt >contract.txt.gz"
//go:generate go test -run TestGenerated -update .

// Contract is all of it, in the order of the text.
type Contract struct {
	// Version is that of the contract. Within one, members and methods are only added.
	Version int
	Methods []Method
	Types   []Named
	// Sections are the names of methods and types, in the order of the text.
	Sections []Section
	byName   map[string]*Named
}

// Section is a part of the text.
type Section struct {
	Title string
	Names []string
}

// Method is something that one side sends to the other.
type Method struct {
	Name, About string
	// Server: the server sends it.
	Server bool
	Params *Type
	// Result is nil for a notification.
	Result *Type
	// Flag is the capability that a server with this method has; "": every server has it.
	Flag string
	// Repeat is what a client does that has lost the answer: safe, same, never or reopen; "" for a
	// notification.
	Repeat string
	Errors []Failure
	// ParamsExample and ResultExample are JSON.
	ParamsExample, ResultExample json.RawMessage
}

// Failure is an error that a client may want to know.
type Failure struct {
	Code int
	When string
}

// Named is a record, or another type with a name.
type Named struct {
	Name, About string
	// Type is nil for a record.
	Type *Type
	// Strict: a record refuses members that it does not have.
	Strict  bool
	Members []Member
	Rules   []Rule
}

// Member is one member of a record.
type Member struct {
	Name, About string
	Type        *Type
	Optional    bool // may be absent
	// Default is what absent means, as JSON; nil: the description says it.
	Default json.RawMessage
	// Flag is the capability that a server with this member has; "": every server has it.
	Flag string
}

// Rule is about several members. With Both, Member and With are not given together. Otherwise
// the object Member, if it is given, has the member With.
type Rule struct {
	Member, With string
	Both         bool
}

// Kind is the kind of a type.
type Kind string

// The kinds.
const (
	String  Kind = "string"
	Integer Kind = "integer"
	Boolean Kind = "boolean"
	Null    Kind = "null"
	Any     Kind = "any"
	Base64  Kind = "base64"
	Path    Kind = "path" // a file: URI
	Word    Kind = "word" // one constant string
	List    Kind = "list"
	Map     Kind = "map"
	Ref     Kind = "ref"
	Union   Kind = "union"
)

// NoLimit is a Type.Most without a bound.
const NoLimit = math.MaxUint64

// Type is the type of a value.
type Type struct {
	Kind Kind
	// Least and Most bound the length of a string in bytes, that of Base64 in decoded bytes, the elements of
	// a List and the members of a Map. Of an unsigned Integer they bound the value; a Signed one has
	// 64 bits.
	Least, Most uint64
	Signed      bool
	// Pattern is a regular expression of a String, and Example matches it.
	Pattern, Example string
	Word             string
	// Name is that of a Ref.
	Name string
	// Key and Elem are the types in a Map; a List has only Elem.
	Key, Elem *Type
	// Arms are those of a Union.
	Arms []*Type
}

// packed is contract.txt, which would be 55 KB larger in every agent.
//
//go:embed contract.txt.gz
var packed string

// Load returns the contract.
var Load = sync.OnceValue(func() *Contract {
	var text []byte
	r, err := gzip.NewReader(strings.NewReader(packed))
	if err == nil {
		text, err = io.ReadAll(r)
	}
	var c *Contract
	if err == nil {
		c, err = parse(string(text))
	}
	if err != nil {
		panic(err) // a test reads it
	}
	return c
})

// Named returns a record or type by its name, or nil.
func (c *Contract) Named(name string) *Named { return c.byName[name] }

// Method returns a method by its name, or nil.
func (c *Contract) Method(name string) *Method {
	i := slices.IndexFunc(c.Methods, func(m Method) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Methods[i]
}

// Flags returns the capabilities.
func (c *Contract) Flags() []Member { return c.Named("Capabilities").Members }

// Member returns a member by its name, or nil.
func (n *Named) Member(name string) *Member {
	i := slices.IndexFunc(n.Members, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &n.Members[i]
}

// walk calls visit for the type and each type in it.
func (t *Type) walk(visit func(*Type)) {
	visit(t)
	for _, inner := range append([]*Type{t.Key, t.Elem}, t.Arms...) {
		if inner != nil {
			inner.walk(visit)
		}
	}
}

// kind says who sends the message, and whether it has an answer.
func (m *Method) kind() string {
	side, kind := "client", "notification"
	if m.Server {
		side = "server"
	}
	if m.Result != nil {
		kind = "request"
	}
	return side + " " + kind
}

// words makes one name of the parts of another: processStart of process/start.
func words(name string, first, next func(string) string, between string) string {
	var b strings.Builder
	for i, part := range strings.FieldsFunc(name, func(r rune) bool { return r == '/' }) {
		if i > 0 {
			b.WriteString(between + next(part))
		} else {
			b.WriteString(first(part))
		}
	}
	return b.String()
}
