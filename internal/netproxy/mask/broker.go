package mask

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sort"
	"strings"
)

// Config configures a broker.
type Config struct {
	// Environ is the environment of the command before masking, in the form of os.Environ.
	Environ []string
	// Host is the environment of the operator's program. The values of the operator's variables in it
	// are secrets too, even if the command does not inherit these variables, because others may contain
	// them. Only Host says where URLPrefixFromEnv of an Operator provider leads.
	Host []string
	// Operator and Providers are providers by name. Those of Operator come before the built-in
	// providers, and those of Providers come after. If several providers name a variable, the first
	// one counts. If a variable of an Operator provider has a value that matches no pattern, or if
	// that provider is invalid, the value is removed.
	Operator, Providers map[string]Provider
	// Scope is a secret. Within one scope equal credentials have equal placeholders, so that commands
	// of a session can pass placeholders to each other. If it is empty, New makes a random scope.
	Scope []byte
	// Log records the providers that are ignored and the variables that are removed. Nil: nothing is
	// logged.
	Log *slog.Logger
}

// A Broker has the credentials of one command. It is immutable and may be used concurrently.
type Broker struct {
	environ       []string
	byPlaceholder map[string]*credential
	marker        string
}

// A credential is a value that the command does not see.
type credential struct {
	value, placeholder string
	bindings           []*binding
}

// minReplaced is the length in bytes from which a credential is also replaced inside longer texts.
// A shorter credential might occur by chance inside other words.
const minReplaced = 8

// New finds the credentials of an environment, and makes a placeholder for each. A credential that
// cannot be masked is removed from the environment.
func New(c Config) (*Broker, error) {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if len(c.Scope) == 0 {
		c.Scope = make([]byte, sha256.Size)
		_, _ = rand.Read(c.Scope) // it never fails
	}
	values, host := valuesOf(c.Environ), valuesOf(c.Host)
	taken := map[string]bool{}
	families := custom(c.Operator, true, taken, host.lookup, c.Log)
	for _, f := range builtin(values.lookup) {
		f.env = slices.DeleteFunc(f.env, func(env string) bool { return taken[env] })
		families = append(families, f)
	}
	for _, f := range families {
		for _, env := range f.env {
			taken[env] = true
		}
	}
	families = append(families, custom(c.Providers, false, taken, values.lookup, c.Log)...)

	m := masking{scope: c.Scope, log: c.Log, known: map[string]*credential{}, names: map[string]*credential{}}
	for _, f := range families {
		for _, name := range f.env {
			for _, value := range values[name] {
				m.variable(f, name, value)
			}
			if f.hide {
				for _, value := range host[name] {
					m.variable(f, "", value)
				}
			}
		}
	}
	for _, entry := range c.Environ {
		m.anywhere(families, entry)
	}
	b := &Broker{environ: m.environ(c.Environ), byPlaceholder: map[string]*credential{}}
	for _, cred := range m.known {
		b.byPlaceholder[cred.placeholder] = cred
	}
	var err error
	b.marker, err = m.marker(b.environ)
	return b, err
}

// values are the values of variables. A name may occur more than once.
type values map[string][]string

func valuesOf(environ []string) values {
	all := values{}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			all[name] = append(all[name], value)
		}
	}
	return all
}

// lookup returns the value of a variable. Several values give a text that is no valid destination.
func (v values) lookup(name string) string { return strings.Join(v[name], "\x00") }

// bundles are the variables that tell programs which file of trusted TLS roots to use.
var bundles = []string{
	"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT",
	"CARGO_HTTP_CAINFO", "BUNDLE_SSL_CA_CERT", "NPM_CONFIG_CAFILE", "npm_config_cafile", "CODEX_CA_CERTIFICATE",
}

// Environ returns the environment of the command: that of [Config] with placeholders, and with
// variables that name the file of trusted roots. The caller has written bundle to a path that the
// command can read (network.md 8.4).
func (b *Broker) Environ(bundle string) []string {
	return Trusting(b.environ, bundle,
		"CODEX_NETWORK_PROXY_CREDENTIAL_BROKER_ACTIVE=1",
		"CODEX_NETWORK_PROXY_BROKERED_CREDENTIALS="+b.marker)
}

// Trusting returns an environment with variables that name the file of trusted roots, and with those
// added.
func Trusting(environ []string, bundle string, added ...string) []string {
	for _, name := range bundles {
		added = append(added, name+"="+bundle)
	}
	out := slices.Clone(environ)
	for _, entry := range added {
		name, _, _ := strings.Cut(entry, "=")
		out = slices.DeleteFunc(out, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	}
	return append(out, added...)
}

// Bound reports whether a credential of the command may go to a host and port, so that the proxy
// has to look into requests there.
func (b *Broker) Bound(tls bool, host string, port uint16) bool {
	for _, c := range b.byPlaceholder {
		for _, bound := range c.bindings {
			for i := range bound.places {
				if bound.places[i].at(tls, host, port) {
					return true
				}
			}
		}
	}
	return false
}

// masking is the state of New.
type masking struct {
	scope []byte
	log   *slog.Logger
	known map[string]*credential // by value
	names map[string]*credential // by variable: the credentials in variables of families

	secrets   secrets // all, including those without a placeholder
	operators secrets // those of the operator
}

// secrets are secret values.
type secrets struct {
	whole []string
	forms []string // the longer ones and their encodings, which no longer text may contain
}

func (s *secrets) add(value string) {
	s.whole = append(s.whole, value)
	if len(value) >= minReplaced {
		s.forms = append(append(s.forms, value), encoded(value)...)
	}
}

// in reports whether a text contains a secret, or its base64 form, which prepared headers have.
func (s *secrets) in(text string) bool {
	if text == "" {
		return false
	}
	return slices.Contains(s.whole, text) || slices.ContainsFunc(s.forms, func(form string) bool { return strings.Contains(text, form) })
}

// note notes that a value belongs to a variable. Without a name it belongs to none of the command.
func (m *masking) note(name, value string) {
	if name != "" {
		m.names[name] = m.known[value]
	}
}

// variable masks the value of a variable that belongs to a family.
func (m *masking) variable(f *family, name, value string) {
	if value == "" {
		return
	}
	if f.built {
		prefix, ok := f.has(value)
		if !ok && len(value) < minBuilt || isPlaceholder(value, prefix) {
			return
		}
		if m.add(f, value, func(r *mathrand.Rand) string { return built(prefix, value, r) }) {
			m.note(name, value)
		}
		return
	}
	for _, s := range f.shapes {
		if s.whole.MatchString(value) {
			if m.add(f, value, s.texts(len(value))) {
				m.note(name, value)
			}
			return
		}
	}
	if f.hide {
		m.add(f, value, nil)
	}
}

// anywhere masks the values in a variable that look like a credential of a built-in family,
// whatever the name of the variable.
func (m *masking) anywhere(families []*family, entry string) {
	name, text, ok := strings.Cut(entry, "=")
	if !ok || enterprise[name] {
		return
	}
	for _, value := range found(text) {
		if slices.Contains(m.secrets.whole, value) {
			continue
		}
		for _, f := range families {
			prefix, ok := f.has(value)
			if !ok || isPlaceholder(value, prefix) {
				continue
			}
			m.add(f, value, func(r *mathrand.Rand) string { return built(prefix, value, r) })
			break
		}
	}
}

// built returns a placeholder of a built-in family: the prefix, the word "masked", and random
// characters. It is as long as the value, but has at least minBuilt random characters.
func built(prefix, value string, r *mathrand.Rand) string {
	text := []byte(prefix + placeholderWord)
	for n := max(len(value), len(text)+minBuilt); len(text) < n; {
		text = append(text, alphanumeric[r.IntN(len(alphanumeric))])
	}
	return string(text)
}

const placeholderWord = "masked"

// isPlaceholder reports whether a value is a placeholder that a broker has made for another
// command. Such a value is no secret.
func isPlaceholder(value, prefix string) bool {
	return strings.HasPrefix(value, prefix+placeholderWord)
}

// add binds a value to the destinations of a family, and makes a placeholder unless the value has
// one. If no placeholder can be made, or if placeholder is nil, the value is a secret that is
// removed from all variables. add reports whether the value has a placeholder.
func (m *masking) add(f *family, value string, placeholder func(*mathrand.Rand) string) bool {
	if f.hide {
		m.operators.add(value)
	} else if m.operators.in(value) {
		// Only the operator says where such a value may go. As a part of a longer value it is replaced
		// there.
		return m.known[value] != nil
	}
	if c := m.known[value]; c != nil {
		c.bindings = append(c.bindings, f.bound)
		return true
	}
	m.secrets.add(value)
	if placeholder == nil || !isFieldValue(value) || strings.TrimSpace(value) != value {
		return false // no header can carry the value
	}
	for attempt := range attempts {
		text := placeholder(m.chance(value, attempt))
		if text == "" || text == value || strings.Contains(text, value) || strings.Contains(value, text) || m.isTaken(text) || !f.fits(text) {
			continue
		}
		m.known[value] = &credential{value: value, placeholder: text, bindings: []*binding{f.bound}}
		return true
	}
	return false
}

// fits reports whether a placeholder has the shape of the family's credentials.
func (f *family) fits(text string) bool {
	return f.built || slices.ContainsFunc(f.shapes, func(s *shape) bool { return s.whole.MatchString(text) })
}

func (m *masking) isTaken(placeholder string) bool {
	for _, c := range m.known {
		if c.placeholder == placeholder || c.value == placeholder {
			return true
		}
	}
	return false
}

// chance returns random numbers that depend only on the scope, the value and the attempt.
func (m *masking) chance(value string, attempt int) *mathrand.Rand {
	sum := hmac.New(sha256.New, m.scope)
	_, _ = fmt.Fprintf(sum, "%d %s", attempt, value) // it never fails
	return mathrand.New(mathrand.NewChaCha8([sha256.Size]byte(sum.Sum(nil))))
}

// environ returns an environment with placeholders in place of credentials, and without the
// variables that would still contain a credential.
func (m *masking) environ(environ []string) []string {
	known := slices.SortedFunc(maps.Values(m.known), func(a, b *credential) int { // the longest first, because a long value may contain a shorter one
		return cmp.Or(cmp.Compare(len(b.value), len(a.value)), cmp.Compare(a.value, b.value))
	})
	var pairs []string
	for _, c := range known {
		if len(c.value) >= minReplaced {
			pairs = append(pairs, c.value, c.placeholder)
		}
	}
	replacer := strings.NewReplacer(pairs...)
	var out []string
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			name, value = entry, ""
		}
		if c := m.known[value]; c != nil {
			value = c.placeholder
		} else {
			value = replacer.Replace(value)
		}
		if m.shows(name) || m.shows(value) {
			m.log.Warn("a variable is removed from the environment of a command: a credential in it cannot be masked", "variable", m.nameOf(name))
			continue
		}
		if ok {
			entry = name + "=" + value
		}
		out = append(out, entry)
	}
	return out
}

// shows reports whether a text still contains a credential. Credentials in base64 are not replaced.
func (m *masking) shows(text string) bool { return m.secrets.in(text) }

// encoded returns the base64 characters that a value always gives inside a longer text. There is
// one form for each of the three alignments and each of the two alphabets.
func encoded(value string) []string {
	var forms []string
	for before := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), value...))
		text = text[(before*8+5)/6 : (before+len(value))*8/6] // only the characters that depend on the value alone
		forms = append(forms, text, strings.NewReplacer("+", "-", "/", "_").Replace(text))
	}
	return forms
}

// nameOf returns the name of a variable for the log, unless the name contains a credential.
func (m *masking) nameOf(name string) string {
	if m.shows(name) {
		return "(its name has it)"
	}
	return name
}

// marker returns the list of masked variables for programs that read it, as JSON. It has each
// variable that contains a placeholder, and each variable of a family.
func (m *masking) marker(environ []string) (string, error) {
	list := [][2]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		for _, c := range m.known {
			if strings.Contains(value, c.placeholder) {
				list = append(list, [2]string{"@alias:" + name, c.placeholder})
			}
		}
	}
	for name, c := range m.names {
		list = append(list, [2]string{name, c.placeholder})
	}
	sort.Slice(list, func(i, j int) bool {
		return cmp.Or(cmp.Compare(list[i][0], list[j][0]), cmp.Compare(list[i][1], list[j][1])) < 0
	})
	text, err := json.Marshal(slices.Compact(list))
	return string(text), err
}
