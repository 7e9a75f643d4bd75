package describe

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of the YAML texts. The length of a name is part of the interface; the other bounds are our
// choice.
const (
	maxName = 64 // characters
	// maxFrontMatter bounds the lines between the marks, and maxMetadata an openai.yaml, in bytes,
	// because the parser needs a hundred times the memory of a text.
	maxFrontMatter = 64 << 10
	maxMetadata    = 64 << 10
	// maxTried bounds the values of a front matter that are parsed separately, to find out whether
	// they need quotes.
	maxTried = 256
	// maxYAMLDepth bounds the nesting of a text. The parser's own bound is 10,000.
	maxYAMLDepth = 64
)

// header is the front matter of a SKILL.md (capabilities.md 3.2).
type header struct {
	name             string // "" if there is none
	description      string
	shortDescription string // "" if there is none
}

// Errors of texts. A client gets them only if it asks for details. Otherwise a refused skill causes only
// one warning for its whole location.
var (
	errNoFrontMatter = errors.New("no front matter")
	errAlias         = errors.New("aliases are refused")
	errNested        = errors.New("nested too deep")
)

// parseHeader reads the front matter at the beginning of a SKILL.md. It reads nothing after the
// closing mark.
func parseHeader(text string) (header, error) {
	block, err := frontMatter(text)
	if err != nil {
		return header{}, err
	}
	top, err := parseYAML(block)
	if err != nil {
		// Try again with quotes around values that people forget to quote.
		repaired, ok := repair(block)
		if !ok {
			return header{}, err
		}
		var again error
		if top, again = parseYAML(repaired); again != nil {
			return header{}, err
		}
	}
	return readHeader(top)
}

// frontMatter returns the lines between the first line, which must be a mark (---), and the next
// mark.
func frontMatter(text string) (string, error) {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimSpace(first) != "---" {
		return "", errNoFrontMatter
	}
	end := 0
	for line := range strings.Lines(rest) {
		if strings.TrimSpace(line) == "---" {
			if end == 0 {
				break
			}
			return rest[:end], nil
		}
		if end += len(line); end > maxFrontMatter {
			return "", fmt.Errorf("front matter of more than %d bytes", maxFrontMatter)
		}
	}
	return "", errNoFrontMatter
}

// parseYAML parses a text that must be a mapping.
func parseYAML(text string) (*yaml.Node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("not a mapping")
	}
	return doc.Content[0], check(&doc, maxYAMLDepth)
}

// check refuses aliases, because a few bytes of aliases could expand to gigabytes. It also refuses
// deep nesting.
func check(n *yaml.Node, levels int) error {
	if levels == 0 {
		return errNested
	}
	if n.Kind == yaml.AliasNode {
		return errAlias
	}
	for _, child := range n.Content {
		if err := check(child, levels-1); err != nil {
			return err
		}
	}
	return nil
}

// members returns the members of a mapping by name. A repeated name is an error.
func members(n *yaml.Node) (map[string]*yaml.Node, error) {
	found := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if n.Content[i].Kind != yaml.ScalarNode {
			continue
		}
		if found[name] != nil {
			return nil, fmt.Errorf("%.64q is there twice", name)
		}
		found[name] = n.Content[i+1]
	}
	return found, nil
}

// text returns a scalar as one line; "" if it is missing or null.
func text(n *yaml.Node) (string, error) {
	switch {
	case n == nil || isNull(n):
		return "", nil
	case n.Kind != yaml.ScalarNode:
		return "", errors.New("not a text")
	}
	return fold(n.Value), nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// fold converts a text to one line: each run of white space becomes one blank.
func fold(s string) string { return strings.Join(strings.Fields(s), " ") }

func readHeader(top *yaml.Node) (h header, err error) {
	all, err := members(top)
	if err != nil {
		return header{}, err
	}
	if h.name, err = text(all["name"]); err != nil {
		return header{}, err
	}
	if h.description, err = text(all["description"]); err != nil {
		return header{}, err
	}
	if metadata := all["metadata"]; metadata != nil {
		if metadata.Kind != yaml.MappingNode {
			return header{}, errors.New("metadata is no mapping")
		}
		more, err := members(metadata)
		if err != nil {
			return header{}, err
		}
		if h.shortDescription, err = text(more["short-description"]); err != nil {
			return header{}, err
		}
	}
	switch {
	case h.description == "":
		return header{}, errors.New("no description")
	case utf8.RuneCountInString(h.name) > maxName:
		return header{}, fmt.Errorf("a name of more than %d characters", maxName)
	}
	return h, nil
}

// repair puts quotes around values that are invalid YAML without quotes. These are values in which
// a colon follows a word, and values that only begin like a list, a mapping or reserved syntax.
// Block scalars are not changed. ok is false if there are too many values to try.
func repair(block string) (repaired string, ok bool) {
	tried := 0
	var out strings.Builder
	out.Grow(len(block) + 64)
	const none = -1
	scalar := none // indentation of the key of the current block scalar
	for line := range strings.Lines(block) {
		body := strings.TrimRight(line, "\r\n")
		ending := line[len(body):]
		blanks := len(body) - len(strings.TrimLeft(body, " \t"))
		if scalar != none && (blanks > scalar || strings.TrimSpace(body) == "") {
			out.WriteString(line)
			continue
		}
		scalar = none
		key, value, ok := cutKey(body)
		if !ok {
			out.WriteString(line)
			continue
		}
		if value[0] == '|' || value[0] == '>' {
			scalar = blanks
		}
		comment := ""
		if at := strings.Index(value, " #"); at >= 0 {
			comment = value[at:]
			value = value[:at]
		}
		value, space := strings.TrimRight(value, " \t"), value[len(strings.TrimRight(value, " \t")):]
		if isReserved(value) {
			if tried++; tried > maxTried {
				return "", false
			}
		}
		if scalar == none && needsQuotes(value) {
			value = "'" + strings.ReplaceAll(value, "'", "''") + "'"
		}
		out.WriteString(key + value + space + comment + ending)
	}
	return out.String(), true
}

// cutKey splits a line after the key and the blanks that follow it.
func cutKey(line string) (key, value string, ok bool) {
	trimmed := strings.TrimLeft(line, " \t")
	if trimmed == "" || trimmed[0] == '#' {
		return "", "", false
	}
	at := strings.Index(line, ": ")
	if at < 0 || strings.TrimSpace(line[:at]) == "" {
		return "", "", false
	}
	value = strings.TrimLeft(line[at+1:], " \t")
	return line[:len(line)-len(value)], value, value != ""
}

// isReserved reports whether a value begins like a list, a mapping or reserved syntax.
func isReserved(value string) bool { return value != "" && strings.IndexByte("[{@`", value[0]) >= 0 }

func needsQuotes(value string) bool {
	if value == "" || value[0] == '\'' || value[0] == '"' {
		return false
	}
	if !isReserved(value) {
		return strings.Contains(value, ": ")
	}
	var doc yaml.Node
	return yaml.Unmarshal([]byte(value), &doc) != nil
}

// Metadata is the content of the openai.yaml of a skill (capabilities.md 3.2).
type Metadata struct {
	Tools  []Tool       // tools that the skill depends on; nil if there are none
	Policy *SkillPolicy // nil if there is none
}

// SkillPolicy says who may use a skill.
type SkillPolicy struct {
	AllowImplicitInvocation *bool
	Products                []string
}

// A Tool is a tool that a skill depends on. Missing texts are empty.
type Tool struct {
	Type, Value, Description, Transport, Command, URL string
	OAuthCallbackPort                                 *uint16
}

// maxToolText bounds the length of a text of a tool, in characters. A tool with a longer text is
// dropped.
const maxToolText = 1024

// products are the allowed values of Policy.Products.
var products = []string{"codex", "chatgpt", "atlas"}

// parseMetadata parses an openai.yaml. If the file has any error, the result is empty.
func parseMetadata(contents string) Metadata {
	m, err := metadata(contents)
	if err != nil {
		return Metadata{}
	}
	return m
}

func metadata(contents string) (m Metadata, err error) {
	if len(contents) > maxMetadata {
		return m, fmt.Errorf("more than %d bytes", maxMetadata)
	}
	top, err := parseYAML(contents)
	if err != nil {
		return m, err
	}
	all, err := members(top)
	if err != nil {
		return m, err
	}
	if _, err := mapping(all["interface"]); err != nil {
		return m, err
	}
	dependencies, err := mapping(all["dependencies"])
	if err != nil {
		return m, err
	}
	if tools := dependencies["tools"]; tools != nil && !isNull(tools) {
		if tools.Kind != yaml.SequenceNode {
			return m, errors.New("tools are no sequence")
		}
		for _, n := range tools.Content {
			tool, err := readTool(n)
			if err != nil {
				return m, err
			}
			if tool.kept() {
				m.Tools = append(m.Tools, tool)
			}
		}
	}
	m.Policy, err = readPolicy(all["policy"])
	return m, err
}

// mapping returns the members of a mapping, or nil if it is missing or null.
func mapping(n *yaml.Node) (map[string]*yaml.Node, error) {
	switch {
	case n == nil || isNull(n):
		return nil, nil
	case n.Kind != yaml.MappingNode:
		return nil, errors.New("no mapping")
	}
	return members(n)
}

func readTool(n *yaml.Node) (t Tool, err error) {
	if n.Kind != yaml.MappingNode {
		return t, errors.New("a tool that is no mapping")
	}
	all, err := members(n)
	if err != nil {
		return t, err
	}
	for name, to := range map[string]*string{
		"type": &t.Type, "value": &t.Value, "description": &t.Description,
		"transport": &t.Transport, "command": &t.Command, "url": &t.URL,
	} {
		if *to, err = text(all[name]); err != nil {
			return t, err
		}
	}
	oauth, err := mapping(all["oauth"])
	if err != nil {
		return t, err
	}
	if port := oauth["callback_port"]; port != nil && !isNull(port) {
		var number uint16
		if err := port.Decode(&number); err != nil {
			return t, err
		}
		t.OAuthCallbackPort = &number
	}
	return t, nil
}

// kept reports whether a tool has the required texts, and no text that is too long.
func (t *Tool) kept() bool {
	for _, s := range []string{t.Type, t.Value, t.Description, t.Transport, t.Command, t.URL} {
		if utf8.RuneCountInString(s) > maxToolText {
			return false
		}
	}
	return t.Type != "" && t.Value != ""
}

func readPolicy(n *yaml.Node) (*SkillPolicy, error) {
	if n == nil || isNull(n) {
		return nil, nil
	}
	all, err := mapping(n)
	if err != nil {
		return nil, err
	}
	p := &SkillPolicy{Products: []string{}}
	if allow := all["allow_implicit_invocation"]; allow != nil && !isNull(allow) {
		if err := allow.Decode(&p.AllowImplicitInvocation); err != nil {
			return nil, err
		}
	}
	if list := all["products"]; list != nil && !isNull(list) {
		if list.Kind != yaml.SequenceNode {
			return nil, errors.New("products are no sequence")
		}
		for _, n := range list.Content {
			product := strings.ToLower(n.Value)
			if n.Kind != yaml.ScalarNode || !slices.Contains(products, product) {
				return nil, fmt.Errorf("an unknown product %.64q", n.Value)
			}
			p.Products = append(p.Products, product)
		}
	}
	return p, nil
}
