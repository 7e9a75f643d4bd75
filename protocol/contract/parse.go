package contract

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A parser reads the text line by line.
type parser struct {
	c      *Contract
	about  []string
	usual  map[string]string // descriptions of members that have none, by name
	method *Method
	named  *Named
}

// parse reads a contract.
func parse(text string) (*Contract, error) {
	p := &parser{c: &Contract{byName: map[string]*Named{}}, usual: map[string]string{}}
	for i, line := range strings.Split(text, "\n") {
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("contract.txt:%d: %w", i+1, err)
		}
	}
	p.end()
	for i := range p.c.Types {
		n := &p.c.Types[i]
		p.c.byName[n.Name] = n
		for j := range n.Members {
			n.Members[j].About = cmp.Or(n.Members[j].About, p.usual[n.Members[j].Name])
		}
	}
	return p.c, nil
}

func (p *parser) line(line string) error {
	words := strings.Fields(line)
	switch {
	case len(words) == 4 && words[0] == "#" && words[1] == "----":
		if p.end(); p.about != nil {
			return errors.New("a description describes nothing")
		}
		p.c.Sections = append(p.c.Sections, Section{Title: strings.ReplaceAll(words[2], "_", " ")})
		return nil
	case len(words) == 0, line[0] == '#':
		return nil
	case words[0] == "//":
		p.about = append(p.about, strings.TrimPrefix(strings.TrimSpace(line), "// "))
		return nil
	case line[0] != ' ':
		p.end()
		return p.declaration(line, words)
	case p.method != nil:
		return p.methodLine(words[0], strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), words[0])))
	case p.named != nil && p.named.Type == nil:
		return p.memberLine(strings.TrimSpace(line))
	}
	return errors.New("this line belongs to nothing")
}

// end adds what was read last.
func (p *parser) end() {
	name := ""
	if p.method != nil {
		p.c.Methods = append(p.c.Methods, *p.method)
		name = p.method.Name
	}
	if p.named != nil {
		p.c.Types = append(p.c.Types, *p.named)
		name = p.named.Name
	}
	if name != "" {
		section := &p.c.Sections[len(p.c.Sections)-1]
		section.Names = append(section.Names, name)
	}
	p.method, p.named = nil, nil
}

// takeAbout returns the description that was read.
func (p *parser) takeAbout() string {
	about := strings.Join(p.about, " ")
	p.about = nil
	return about
}

func (p *parser) declaration(line string, words []string) (err error) {
	about := p.takeAbout()
	switch {
	case words[0] == "version" && len(words) == 2:
		p.c.Version, err = strconv.Atoi(words[1])
	case words[0] == "member" && len(words) == 2:
		p.usual[words[1]] = about
	case len(p.c.Sections) == 0:
		return errors.New("it comes before the first section")
	case words[0] == "record" && len(words) == 2:
		p.named = &Named{Name: words[1], About: about}
	case words[0] == "strict" && len(words) == 3 && words[1] == "record":
		p.named = &Named{Name: words[2], About: about, Strict: true}
	case words[0] == "type" && len(words) > 3 && words[2] == "=":
		p.named = &Named{Name: words[1], About: about}
		_, of, _ := strings.Cut(line, "=")
		p.named.Type, err = parseType(of)
	case (words[0] == "client" || words[0] == "server") && len(words) > 3:
		m := &Method{Name: words[2], About: about, Server: words[0] == "server"}
		if m.Params, err = parseType(words[3]); err != nil {
			return err
		}
		switch {
		case words[1] == "notification" && len(words) == 4:
		case words[1] == "request" && len(words) == 5:
			m.Result, err = parseType(words[4])
		default:
			return errors.New("neither a request with params and result nor a notification with params")
		}
		p.method = m
	default:
		return fmt.Errorf("no declaration begins with %q", words[0])
	}
	return err
}

func (p *parser) methodLine(word, rest string) (err error) {
	m := p.method
	switch word {
	case "flag":
		m.Flag = rest
	case "repeat":
		m.Repeat = rest
	case "params":
		m.ParamsExample = json.RawMessage(rest)
	case "result":
		m.ResultExample = json.RawMessage(rest)
	case "error":
		code, when, _ := strings.Cut(rest, " ")
		f := Failure{When: when}
		f.Code, err = strconv.Atoi(code)
		m.Errors = append(m.Errors, f)
	default:
		err = fmt.Errorf("%q says nothing about a method", word)
	}
	return err
}

func (p *parser) memberLine(line string) (err error) {
	if rule, ok := strings.CutPrefix(line, "! "); ok {
		r := Rule{}
		words := strings.Fields(rule)
		if r.Both = words[0] == "not" && len(words) == 4; r.Both {
			r.Member, r.With = words[1], words[3]
		} else {
			r.Member, r.With, _ = strings.Cut(rule, ".")
		}
		p.named.Rules = append(p.named.Rules, r)
		return nil
	}
	name, rest, ok := strings.Cut(line, ":")
	if !ok {
		return errors.New("a member has a colon after its name")
	}
	m := Member{About: p.takeAbout()}
	m.Name, m.Optional = strings.CutSuffix(name, "?")
	if at := strings.LastIndex(rest, " @"); at >= 0 {
		m.Flag, rest = rest[at+2:], rest[:at]
	}
	of, value, ok := strings.Cut(rest, " = ")
	if ok {
		m.Default = json.RawMessage(value)
	}
	m.Type, err = parseType(of)
	p.named.Members = append(p.named.Members, m)
	return err
}

// token is a part of a type: a word in quotes, a pattern, a name, a bound, or one character. It is compiled when a
// contract is read, because each start of an agent would pay for it otherwise.
var token = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:"[^"]*"|/(?:\\.|[^/\\])*/|[A-Za-z][A-Za-z0-9]*|[0-9]*\.\.[0-9]*|[()|,])`)
})

// parseType reads a type.
func parseType(text string) (*Type, error) {
	var tokens []string
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		found := token().FindString(text)
		if found == "" {
			return nil, fmt.Errorf("no type continues with %q", text)
		}
		tokens, text = append(tokens, found), text[len(found):]
	}
	r := &typeReader{tokens: tokens}
	t := r.union()
	if r.err == nil && len(r.tokens) > 0 {
		r.fail("unexpected %q", r.tokens[0])
	}
	return t, r.err
}

// A typeReader reads a type from its tokens.
type typeReader struct {
	tokens []string
	err    error
}

func (r *typeReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("type: "+format, args...)
	}
}

func (r *typeReader) next() string {
	if len(r.tokens) == 0 {
		r.fail("it ends too early")
		return ""
	}
	found := r.tokens[0]
	r.tokens = r.tokens[1:]
	return found
}

// take takes the next token if it is this one.
func (r *typeReader) take(want string) bool {
	if len(r.tokens) == 0 || r.tokens[0] != want {
		return false
	}
	r.tokens = r.tokens[1:]
	return true
}

func (r *typeReader) union() *Type {
	arms := []*Type{r.term()}
	for r.take("|") {
		arms = append(arms, r.term())
	}
	if len(arms) == 1 {
		return arms[0]
	}
	return &Type{Kind: Union, Arms: arms}
}

func (r *typeReader) term() *Type {
	word := r.next()
	t := &Type{Most: NoLimit}
	switch {
	case word == "":
		return t
	case word[0] == '"':
		t.Kind, t.Word = Word, strings.Trim(word, `"`)
		return t
	case word == "int":
		t.Kind, t.Signed = Integer, true
	case word == "uint":
		t.Kind = Integer
	case slices.Contains([]Kind{String, Boolean, Null, Any, Base64, Path, List, Map}, Kind(word)):
		t.Kind = Kind(word)
	default:
		t.Kind, t.Name = Ref, word
	}
	if !r.take("(") {
		if t.Kind == List || t.Kind == Map {
			r.fail("a %s has a type of its elements", word)
		}
		return t
	}
	for !r.take(")") && r.err == nil {
		if len(r.tokens) == 0 {
			r.fail("a parenthesis is not closed")
			return t
		}
		r.argument(t)
		r.take(",")
	}
	if (t.Kind == List || t.Kind == Map) && t.Elem == nil {
		r.fail("a %s has a type of its elements", word)
	}
	return t
}

// argument reads one of the things in parentheses behind a type.
func (r *typeReader) argument(t *Type) {
	first := r.tokens[0]
	switch {
	case strings.Contains(first, "..") && first[0] != '"' && first[0] != '/':
		least, most, _ := strings.Cut(r.next(), "..")
		t.Least, _ = strconv.ParseUint(least, 10, 64)
		if most != "" {
			t.Most, _ = strconv.ParseUint(most, 10, 64)
		}
	case t.Kind == String && first[0] == '/':
		t.Pattern = strings.Trim(r.next(), "/")
	case t.Kind == String && first[0] == '"':
		t.Example = strings.Trim(r.next(), `"`)
	case t.Kind == Map && t.Key == nil:
		t.Key = r.union()
	case t.Kind == Map, t.Kind == List:
		t.Elem = r.union()
	default:
		r.fail("%s has no argument %q", t.Kind, r.next())
	}
}

// repeats are the values of Method.Repeat.
var repeats = []string{"safe", "same", "never", "reopen"}

// Check returns what is wrong in a contract that could be read: names that do not exist, or are not used,
// and what is missing. A test calls it.
func (c *Contract) Check() error {
	var wrong []error
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf("contract.txt: "+format, args...)) }
	used := map[string]bool{"RequestMessage": true, "NotificationMessage": true, "ResultMessage": true, "ErrorMessage": true}
	flag := func(of, name string) {
		if name != "" && c.Named("Capabilities").Member(name) == nil {
			say("%s: Capabilities has no flag %s", of, name)
		}
	}
	refs := func(of string, t *Type) {
		t.walk(func(t *Type) {
			if t.Kind == Ref {
				used[t.Name] = true
				if c.Named(t.Name) == nil {
					say("%s: there is no record or type %s", of, t.Name)
				}
			}
			if t.Pattern != "" && !regexp.MustCompile(t.Pattern).MatchString(t.Example) {
				say("%s: %q does not match /%s/", of, t.Example, t.Pattern)
			}
			if t.Least > t.Most {
				say("%s: %d..%d has no value", of, t.Least, t.Most)
			}
		})
	}
	if len(c.byName) != len(c.Types) {
		say("a name is used twice")
	}
	for _, m := range c.Methods {
		refs(m.Name, m.Params)
		flag(m.Name, m.Flag)
		if m.Result != nil {
			refs(m.Name, m.Result)
		}
		if slices.Contains(repeats, m.Repeat) != (m.Result != nil) {
			say("%s: a request has one of %v as repeat, a notification has none", m.Name, repeats)
		}
		if m.About == "" || !json.Valid(m.ParamsExample) || json.Valid(m.ResultExample) != (m.Result != nil) {
			say("%s: a method has a description, and examples of its params and result", m.Name)
		}
	}
	for _, n := range c.Types {
		if n.Type != nil {
			refs(n.Name, n.Type)
		}
		for _, m := range n.Members {
			of := n.Name + "." + m.Name
			refs(of, m.Type)
			flag(of, m.Flag)
			if m.About == "" || m.Default != nil && !json.Valid(m.Default) {
				say("%s: a member has a description, and its default is JSON", of)
			}
		}
		for _, r := range n.Rules {
			if n.Member(r.Member) == nil || r.Both && n.Member(r.With) == nil {
				say("%s: a rule is about %s and %s, which it does not have", n.Name, r.Member, r.With)
			}
		}
	}
	for _, n := range c.Types {
		if !used[n.Name] {
			say("%s: nothing uses it", n.Name)
		}
	}
	return errors.Join(wrong...)
}
