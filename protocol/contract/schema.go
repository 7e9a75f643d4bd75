package contract

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// object is a JSON object.
type object = map[string]any

// Patterns of strings that are more than text. That of base64 refuses stray bits in the last symbol, that
// of paths a query, a fragment and an encoded NUL.
const (
	base64Pattern = `^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$`
	pathPattern   = `^[Ff][Ii][Ll][Ee]:(?:[^?#%]|%(?:%|0%)*(?:[^?#%0]|0[^?#%0]))*(?:%(?:%|0%)*0?)?$`
)

// published is where the files are read.
const published = "https://github.com/execagent/execagent/blob/main/docs/contract/"

// summary says what the files are.
const summary = "What a client and an execagent say to each other. Messages are those of JSON-RPC 2.0 without the member jsonrpc. Members and methods are only added. " +
	"Integers are written without fraction and exponent. Lengths of strings are bytes of UTF-8 (x-maxBytes); maxLength counts characters, " +
	"and so is the weaker bound. No object has a name twice. Unknown members are ignored, unless additionalProperties is false. " +
	"x-capability names the flag that a server with a method or member has."

// schema is the JSON Schema: one definition for each record and type.
func schema(c *Contract) any {
	defs := object{}
	for i := range c.Types {
		defs[c.Types[i].Name] = c.definition(&c.Types[i], "#/$defs/")
	}
	return object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": published + "schema.json",
		"title": "execagent", "description": summary, "x-version": c.Version, "$defs": defs,
	}
}

// definition is the schema of a record or type. Its references begin with at.
func (c *Contract) definition(n *Named, at string) object {
	s := object{"type": "object"}
	if n.Type != nil {
		s = n.Type.schema(at)
	} else {
		properties, required := object{}, []string{}
		for _, m := range n.Members {
			p := m.Type.schema(at)
			describe(p, m.About)
			if m.Default != nil {
				p["default"] = m.Default
			}
			if m.Flag != "" {
				p["x-capability"] = m.Flag
			}
			properties[m.Name] = p
			if !m.Optional {
				required = append(required, m.Name)
			}
		}
		if len(properties) > 0 {
			s["properties"] = properties
		}
		if len(required) > 0 {
			s["required"] = required
		}
		if n.Strict {
			s["additionalProperties"] = false
		}
		for _, r := range n.Rules {
			s["allOf"] = append(asList(s["allOf"]), r.schema())
		}
	}
	describe(s, n.About)
	c.annotate(s, n.Name)
	return s
}

// schema is a rule as a schema.
func (r Rule) schema() object {
	if r.Both {
		// null is as good as absent.
		given := object{"not": object{"type": "null"}}
		return object{"not": object{"required": []string{r.Member, r.With}, "properties": object{r.Member: given, r.With: given}}}
	}
	return object{"properties": object{r.Member: object{
		"required": []string{r.With}, "properties": object{r.With: object{"not": object{"type": "null"}}},
	}}}
}

// annotate says of which methods a record is the params or the result.
func (c *Contract) annotate(s object, name string) {
	methods, directions, flags, repeats := []string{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range c.Methods {
		params, result := m.Params.Name == name, m.Result != nil && m.Result.Name == name
		if !params && !result {
			continue
		}
		methods = append(methods, m.Name)
		directions[direction(m.Server != result)] = true
		flags[m.Flag], repeats[m.Repeat] = true, true
	}
	if len(methods) == 0 {
		return
	}
	s["x-method"] = methods
	for key, of := range map[string]map[string]bool{"x-direction": directions, "x-capability": flags, "x-retry": repeats} {
		if one := slices.Collect(maps.Keys(of)); len(one) == 1 && one[0] != "" {
			s[key] = one[0]
		}
	}
}

// direction says who sends something.
func direction(server bool) string {
	if server {
		return "serverToClient"
	}
	return "clientToServer"
}

func describe(s object, about string) {
	if about == "" {
		return
	}
	if first := s["description"]; first != nil {
		about = first.(string) + " " + about
	}
	s["description"] = about
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// power returns 2 to the power of n, in digits. As a bound it is exact for readers who have floats only.
func power(n int) json.Number {
	return map[int]json.Number{63: "9223372036854775808", 64: "18446744073709551616"}[n]
}

// schema is the schema of a type. Its references begin with at.
func (t *Type) schema(at string) object {
	switch t.Kind {
	case Any:
		return object{}
	case Word:
		return object{"const": t.Word}
	case Path:
		return object{"type": "string", "format": "uri", "pattern": pathPattern}
	case String:
		s := object{"type": "string"}
		bound(s, "minLength", t.Least, 0)
		bound(s, "maxLength", t.Most, NoLimit)
		bound(s, "x-maxBytes", t.Most, NoLimit)
		if t.Pattern != "" {
			s["pattern"], s["examples"] = t.Pattern, []string{t.Example}
		}
		return s
	case Base64:
		s := object{"type": "string", "contentEncoding": "base64", "pattern": base64Pattern}
		bound(s, "minLength", (t.Least+2)/3*4, 0)
		if symbols := (t.Most + 2) / 3 * 4; t.Most != NoLimit {
			// The last four symbols may stand for as many bytes as are left.
			left := strings.Repeat("=", int(3-t.Most%3)%3) + "$"
			s["anyOf"] = []any{object{"maxLength": symbols - 4}, object{"maxLength": symbols, "pattern": left}}
		}
		return s
	case Integer:
		s := object{"type": "integer", "minimum": t.Least, "maximum": t.Most}
		switch {
		case t.Signed:
			s = object{"type": "integer", "minimum": "-" + power(63), "exclusiveMaximum": power(63)}
		case t.Most == NoLimit:
			s = object{"type": "integer", "minimum": t.Least, "exclusiveMaximum": power(64)}
		}
		return s
	case List:
		s := object{"type": "array", "items": t.Elem.schema(at)}
		bound(s, "minItems", t.Least, 0)
		bound(s, "maxItems", t.Most, NoLimit)
		return s
	case Map:
		s := object{"type": "object", "additionalProperties": t.Elem.schema(at)}
		bound(s, "maxProperties", t.Most, NoLimit)
		if t.Key.Most != NoLimit {
			s["propertyNames"] = t.Key.schema(at)
		}
		return s
	case Ref:
		return object{"$ref": at + t.Name}
	case Union:
		return t.union(at)
	}
	return object{"type": string(t.Kind)}
}

// union is the schema of a union: an enum, if there are only words and null.
func (t *Type) union(at string) object {
	var words, arms []any
	null := false
	for _, arm := range t.Arms {
		switch arm.Kind {
		case Word:
			words = append(words, arm.Word)
		case Null:
			null = true
		default:
			arms = append(arms, arm.schema(at))
		}
	}
	switch {
	case t.open():
		arms[0].(object)["examples"] = words
	case words != nil && null && arms == nil:
		return object{"enum": append(words, nil)}
	case words != nil:
		arms = append(arms, object{"enum": words})
	}
	if len(arms) == 1 {
		one := arms[0].(object)
		if !null {
			return one
		}
		if kind, ok := one["type"]; ok {
			one["type"] = []any{kind, "null"}
			return one
		}
	}
	if null {
		arms = append(arms, object{"type": "null"})
	}
	return object{"anyOf": arms}
}

// open reports whether a union has words, and any other string too. The string is its first arm that is
// neither a word nor null.
func (t *Type) open() bool {
	i := slices.IndexFunc(t.Arms, func(arm *Type) bool { return arm.Kind != Word && arm.Kind != Null })
	return i >= 0 && t.Arms[i].Kind == String && slices.ContainsFunc(t.Arms, func(arm *Type) bool { return arm.Kind == Word })
}

func bound(s object, name string, n, none uint64) {
	if n != none {
		s[name] = n
	}
}

// meta is the table of methods.
func meta(c *Contract) any {
	kinds := object{}
	for _, m := range c.Methods {
		row := object{"name": m.Name, "direction": direction(m.Server), "params": typeName(m.Params)}
		if m.Result != nil {
			row["result"], row["retry"] = typeName(m.Result), m.Repeat
		}
		if m.Flag != "" {
			row["capability"] = m.Flag
		}
		key := words(strings.ReplaceAll(m.kind(), " ", "/"), same, title, "") + "s"
		kinds[key] = append(asList(kinds[key]), row)
	}
	kinds["version"] = c.Version
	kinds["capabilities"] = names(c.Flags())
	return kinds
}

func same(s string) string  { return s }
func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func names(members []Member) (all []string) {
	for _, m := range members {
		all = append(all, m.Name)
	}
	return all
}

func typeName(t *Type) string { return cmp.Or(t.Name, string(t.Kind)) }

// openrpc is the OpenRPC document. It has no place for what a server sends, so that is in x-serverMethods.
func openrpc(c *Contract) any {
	schemas := object{}
	for i := range c.Types {
		schemas[c.Types[i].Name] = c.definition(&c.Types[i], "#/components/schemas/")
	}
	ours, theirs := []any{}, []any{}
	for i := range c.Methods {
		m := &c.Methods[i]
		row := c.openMethod(m)
		if m.Server {
			theirs = append(theirs, row)
		} else {
			ours = append(ours, row)
		}
	}
	return object{
		"openrpc":         "1.3.2",
		"info":            object{"title": "execagent", "version": strconv.Itoa(c.Version) + ".0.0", "description": summary},
		"methods":         ours,
		"x-serverMethods": theirs,
		"components":      object{"schemas": schemas},
	}
}

// openMethod is a method of OpenRPC. Each member of its params is one parameter, by name.
func (c *Contract) openMethod(m *Method) object {
	params, example := []any{}, []any{}
	values := object{}
	_ = json.Unmarshal(m.ParamsExample, &values)
	if n := c.Named(m.Params.Name); n != nil {
		for _, member := range n.Members {
			params = append(params, object{
				"name": member.Name, "required": !member.Optional, "description": member.About,
				"schema": member.Type.schema("#/components/schemas/"),
			})
			if v, ok := values[member.Name]; ok {
				example = append(example, object{"name": member.Name, "value": v})
			}
		}
	}
	row := object{"name": m.Name, "description": m.About, "paramStructure": "by-name", "params": params, "x-direction": direction(m.Server)}
	if m.Flag != "" {
		row["x-capability"] = m.Flag
	}
	one := object{"name": m.Name, "params": example}
	if m.Result != nil {
		row["x-retry"] = m.Repeat
		row["result"] = object{"name": "result", "schema": m.Result.schema("#/components/schemas/")}
		one["result"] = object{"name": "result", "value": m.ResultExample}
		errors := []any{}
		for _, e := range m.Errors {
			errors = append(errors, object{"code": e.Code, "message": e.When})
		}
		row["errors"] = errors
	}
	row["examples"] = []any{one}
	return row
}

// encode writes a document as JSON.
func encode(document any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(document); err != nil {
		panic(err) // a test makes all of them
	}
	return out.Bytes()
}
