package mask

import (
	"regexp"
	"strings"
)

// minBuilt is the length in bytes from which any value of a variable of a built-in family counts as
// a credential. A shorter value without a known prefix is a word such as "none".
const minBuilt = 16

// builtin returns the families that need no provider. Their destinations are read from the
// environment once. A destination has the port that it names, or 443.
func builtin(lookup func(string) string) []*family {
	https := func(hosts ...string) []destination {
		var places []destination
		for _, host := range hosts {
			if p, err := parsePlace("https://" + host); err == nil {
				p.path = ""
				places = append(places, p)
			}
		}
		return places
	}
	github := &family{
		env:    []string{"GH_TOKEN", "GITHUB_TOKEN"},
		prefix: []string{"github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"},
		bound:  &binding{places: https("api.github.com", "github.com", "uploads.github.com", "*.ghe.com"), bearer: true, token: true, basic: true},
	}
	openai := &family{
		env:     []string{"OPENAI_API_KEY"},
		prefix:  []string{"sk-proj-", "sk-svcacct-", "sk-admin-", "sk-"},
		without: []string{"sk-ant-", "sk-or-"},
		bound:   &binding{places: https("api.openai.com"), bearer: true},
	}
	if p, err := parsePlace(lookup("OPENAI_BASE_URL")); err == nil && !p.wildcard {
		p.path = ""
		openai.bound.places = []destination{p}
	}
	families := []*family{github, openai}
	// Without GH_HOST, the host of enterprise tokens is not known, and the tokens stay unmasked.
	if places := https(lookup("GH_HOST")); len(places) > 0 && !places[0].wildcard {
		families = append(families, &family{
			env:    []string{"GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"},
			prefix: github.prefix,
			bound:  &binding{places: places, bearer: true, token: true, basic: true},
		})
	}
	for _, f := range families {
		f.built = true
	}
	return families
}

// enterprise are the variables for tokens of a GitHub Enterprise server.
var enterprise = map[string]bool{"GH_ENTERPRISE_TOKEN": true, "GITHUB_ENTERPRISE_TOKEN": true}

// builtShape finds values in any text that look like a credential of a built-in family: one of the
// prefixes, and at least 20 characters after it.
var builtShape = regexp.MustCompile(`(?:github_pat_|gh[pousr]_)[A-Za-z0-9_]{20,}|sk-[A-Za-z0-9_-]{20,}`)

// escaped matches a percent-encoded byte at the end of a text. A letter after it begins a new word.
var escaped = regexp.MustCompile(`%[0-9A-Fa-f]{2}$`)

// found returns the credentials of built-in families in a text.
func found(text string) []string {
	if !strings.Contains(text, "sk-") && !strings.Contains(text, "gh") && !strings.Contains(text, "github_pat_") {
		return nil // a shortcut for most variables, because the regular expression is slower
	}
	var values []string
	for at := 0; ; {
		span := builtShape.FindStringIndex(text[at:])
		if span == nil {
			return values
		}
		begin, end := at+span[0], at+span[1]
		at = end
		if strings.HasPrefix(text[begin:], "sk-") && begin > 0 && strings.IndexByte(alphanumeric+"_-", text[begin-1]) >= 0 && !escaped.MatchString(text[max(begin-3, 0):begin]) {
			at = begin + 1 // "sk-" ends a longer word such as task-; a credential may follow later in it
			continue
		}
		values = append(values, text[begin:end])
	}
}

// has reports whether a value has the shape of the family, and returns the prefix of the value.
func (f *family) has(value string) (prefix string, ok bool) {
	for _, other := range f.without {
		if strings.HasPrefix(value, other) {
			return "", false
		}
	}
	for _, prefix := range f.prefix {
		if strings.HasPrefix(value, prefix) {
			return prefix, true
		}
	}
	return "", false
}
