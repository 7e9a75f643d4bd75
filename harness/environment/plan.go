package environment

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
)

// Local is the id of this process's own environment.
const Local = "local"

// Remote is the id of the one environment of [FromURL] and [FromNoise].
const Remote = "remote"

// FileName is the file of environments in the home directory of the harness.
const FileName = "environments.toml"

// Variables that [Load] reads.
const (
	serverURL          = "CODEX_EXEC_SERVER_URL"
	noiseRegistryURL   = "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL"
	noiseEnvironmentID = "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID"
	noiseAuthToken     = "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN"
	noiseAccountID     = "CODEX_EXEC_SERVER_NOISE_CHATGPT_ACCOUNT_ID"
)

// Plan lists the environments of a new [Set]. [Load] makes a plan from the
// configuration of the process; a program that knows its environments writes its
// own.
type Plan struct {
	Entries []Entry
	// Default is the id of the environment that is used if none is named. "": there is
	// none, so commands and files must name one.
	Default string
	// IncludeLocal: there is a [Local] environment.
	IncludeLocal bool
}

// Entry is one environment that is reached by a transport.
type Entry struct {
	ID        string
	Transport Transport
	Skills    Skills
}

// Skills says which skills an environment must have.
type Skills struct {
	// Required are the names of skills that must exist before a model is called.
	Required []string
}

// Load reads the plan of a process (client.md 4.2). home is the directory of its
// configuration, getenv is os.Getenv. Only the first of these that exists counts:
//
//   - the variables CODEX_EXEC_SERVER_NOISE_REGISTRY_URL, ..._ENVIRONMENT_ID and
//     ..._AUTH_TOKEN, see [FromNoise];
//   - the file environments.toml in home, see [ReadFile];
//   - the variable CODEX_EXEC_SERVER_URL, see [FromURL].
func Load(home string, getenv func(string) string) (Plan, error) {
	plan, ok, err := FromNoise(getenv)
	if ok || err != nil {
		return plan, err
	}
	plan, err = ReadFile(filepath.Join(home, FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return FromURL(getenv(serverURL)), nil
	}
	return plan, err
}

// FromURL returns the plan for one value of CODEX_EXEC_SERVER_URL: "" means the local
// environment, "none" no environment at all, and anything else the server at that
// URL, with the id [Remote].
func FromURL(value string) Plan {
	switch value = strings.TrimSpace(value); {
	case value == "":
		return Plan{Default: Local, IncludeLocal: true}
	case isNone(value):
		return Plan{}
	}
	return Plan{Entries: []Entry{{ID: Remote, Transport: URL{URL: value}}}, Default: Remote}
}

// FromNoise returns the plan with the one environment that the variables for Noise name,
// with the id [Remote]. ok is false if none of the three is set; the error is [ErrNoise]
// if only some are.
func FromNoise(getenv func(string) string) (plan Plan, ok bool, err error) {
	get := func(name string) string { return strings.TrimSpace(getenv(name)) }
	t := Noise{
		RegistryURL:   get(noiseRegistryURL),
		EnvironmentID: get(noiseEnvironmentID),
		AuthToken:     get(noiseAuthToken),
		AccountID:     get(noiseAccountID),
	}
	if t.RegistryURL == "" && t.EnvironmentID == "" && t.AuthToken == "" {
		return Plan{}, false, nil
	}
	if t.RegistryURL == "" || t.EnvironmentID == "" || t.AuthToken == "" {
		return Plan{}, false, ErrNoise
	}
	return Plan{Entries: []Entry{{ID: Remote, Transport: t}}, Default: Remote}, true, nil
}

// check checks the rules for every plan, whatever its source.
func (p Plan) check() error {
	known := map[string]bool{Local: p.IncludeLocal}
	for _, e := range p.Entries {
		if err := e.check(); err != nil {
			return err
		}
		if known[e.ID] {
			return configErrorf("environment id `%s` is duplicated", e.ID)
		}
		known[e.ID] = true
	}
	if p.Default != "" && !known[p.Default] {
		return configErrorf("default environment `%s` is not configured", p.Default)
	}
	return nil
}

func (e Entry) check() error {
	if err := checkID(e.ID); err != nil {
		return err
	}
	if e.Transport == nil {
		return configErrorf("environment `%s` has no transport", e.ID)
	}
	return e.Transport.check()
}

// checkID checks the rules for every id of an environment with a transport. Ids in a
// file must follow more rules.
func checkID(id string) error {
	switch id {
	case "":
		return configErrorf("environment id cannot be empty")
	case Local:
		return configErrorf("environment id `%s` is reserved for EnvironmentManager", id)
	}
	return nil
}
