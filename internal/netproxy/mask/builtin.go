package mask

import (
	"regexp"
	"strings"
)

// minBuilt is how long a value of a variable of ours has to be that does not look like a
// credential, to be taken for one nevertheless: what is shorter is a word such as "none".
const minBuilt = 16

// builtin returns the families that need no provider. Their destinations are taken from the
// environment once, and are at the one port that they name, or 443.
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
	// Tokens of an enterprise's server are those of no known host without this variable, and
	// stay as they are.
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

// enterprise are the variables of tokens of an enterprise's server.
var enterprise = map[string]bool{"GH_ENTERPRISE_TOKEN": true, "GITHUB_ENTERPRISE_TOKEN": true}

// builtShape finds what looks like a credential of ours in any text: one of the prefixes, and
// enough behind it.
var builtShape = regexp.MustCompile(`(?:github_pat_|gh[pousr]_)[A-Za-z0-9_]{20,}|sk-[A-Za-z0-9_-]{20,}`)

// escaped is the end of a text in which the next letter does not go on with a word.
var escaped = regexp.MustCompile(`%[0-9A-Fa-f]{2}$`)

// found returns the credentials of ours that stand in a text.
func found(text string) []string {
	if !strings.Contains(text, "sk-") && !strings.Contains(text, "gh") && !strings.Contains(text, "github_pat_") {
		return nil // as most variables: to search them all takes longer
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
			at = begin + 1 // the end of a longer word, such as task-, in which there may be one
			continue
		}
		values = append(values, text[begin:end])
	}
}

// has reports whether a value has the shape of the family, and with which prefix.
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
