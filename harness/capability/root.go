package capability

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol"
)

const (
	// MaxRoots is how many roots a thread may select.
	MaxRoots = 256
	// MaxSelection is how many bytes the stored form of a selection may have, as a thread's log
	// allows.
	MaxSelection = 256 << 10
)

// Root is a selected capability root: a folder of an environment. It is a wish that lasts as long
// as the thread, whether or not the folder is available now. Roots are comparable and may be keys
// of maps.
type Root struct {
	ID            string // chosen by the selector; not blank, and unique in a selection
	EnvironmentID string
	Path          protocol.PathURI
}

// MarshalJSON returns the stored form.
func (r Root) MarshalJSON() ([]byte, error) {
	return json.Marshal(stored{r.ID, location{environmentLocation, r.EnvironmentID, r.Path}})
}

// stored is the form in which a root is selected and kept (client.md 5.1).
type stored struct {
	ID       string   `json:"id"`
	Location location `json:"location"`
}

type location struct {
	Type          string           `json:"type"`
	EnvironmentID string           `json:"environmentId"`
	Path          protocol.PathURI `json:"path"`
}

// environmentLocation is the only type of a location.
const environmentLocation = "environment"

// Parse reads a selection of roots in its stored form, as threads have it in their first record
// (threadlog.Meta.SelectedCapabilityRoots) and a harness is given it for a new thread:
//
//	[{"id":"demo@1","location":{"type":"environment","environmentId":"worker","path":"file:///plugins/demo"}}]
//
// An empty selection and null are no roots. A path is a file URI or a native absolute path. Unknown
// members are ignored. Parse refuses blank or repeated ids, other types of locations, relative
// paths, more than [MaxRoots] roots and more than [MaxSelection] bytes.
func Parse(selection json.RawMessage) ([]Root, error) {
	text := strings.TrimSpace(string(selection))
	switch {
	case len(selection) > MaxSelection:
		return nil, fmt.Errorf("selected capability roots: %d bytes, %d are allowed", len(selection), MaxSelection)
	case text == "" || text == "null":
		return nil, nil
	case !json.Valid(selection):
		return nil, errors.New("selected capability roots: no JSON")
	}
	var roots selected
	if err := strictjson.Unmarshal([]byte(`{"`+selectedMember+`":`+text+`}`), &roots); err != nil {
		return nil, err
	}
	if err := Check(roots); err != nil {
		return nil, err
	}
	return roots, nil
}

// Format returns the stored form of a selection, which Parse reads. It refuses the same selections
// as Parse.
func Format(roots []Root) (json.RawMessage, error) {
	if err := Check(roots); err != nil {
		return nil, err
	}
	if roots == nil {
		roots = []Root{}
	}
	text, err := json.Marshal(roots)
	if err == nil && len(text) > MaxSelection {
		err = fmt.Errorf("selected capability roots: %d bytes, %d are allowed", len(text), MaxSelection)
	}
	return text, err
}

// Check refuses a selection with too many roots, a blank or repeated id, or a root without an
// environment or a path.
func Check(roots []Root) error {
	if len(roots) > MaxRoots {
		return fmt.Errorf("selected capability roots: there are %d, %d are allowed", len(roots), MaxRoots)
	}
	seen := make(map[string]bool, len(roots))
	for i, r := range roots {
		switch {
		case isBlank(r.ID):
			return fmt.Errorf("selected capability roots: [%d]: the id is blank", i)
		case !utf8.ValidString(r.ID) || !utf8.ValidString(r.EnvironmentID):
			return fmt.Errorf("selected capability roots: [%d]: an id is not UTF-8", i)
		case seen[r.ID]:
			return fmt.Errorf("selected capability roots: [%d]: duplicate id `%.256s`", i, r.ID)
		case isBlank(r.EnvironmentID):
			return fmt.Errorf("selected capability roots: [%d]: the environment id is blank", i)
		case r.Path.IsZero():
			return fmt.Errorf("selected capability roots: [%d]: the path is empty", i)
		}
		seen[r.ID] = true
	}
	return nil
}

func isBlank(id string) bool { return strings.TrimSpace(id) == "" }

// selectedMember is the name of a selection in errors and in the log of a thread.
const selectedMember = "selected_capability_roots"

// selected reads the stored form.
type selected []Root

func (s *selected) UnmarshalObject(o *strictjson.Object) {
	o.Each(selectedMember, func(o *strictjson.Object) {
		r := Root{ID: o.String("id")}
		o.In("location", func(o *strictjson.Object) {
			o.OneOf("type", environmentLocation)
			r.EnvironmentID = o.String("environmentId")
			o.Parse("path", func(text string) (err error) {
				r.Path, err = parsePath(text)
				return err
			})
		})
		if len(*s) <= MaxRoots { // Check refuses the first one too many
			*s = append(*s, r)
		}
	})
}

// parsePath reads a file URI or a native path.
func parsePath(text string) (protocol.PathURI, error) {
	switch {
	case strings.HasPrefix(text, "/"):
		if strings.ContainsRune(text, 0) {
			return protocol.PathURI{}, fmt.Errorf("path %.256q has a NUL byte", text)
		}
		return protocol.NewPathURI(path.Clean(text)), nil
	case !strings.Contains(text, ":"):
		return protocol.PathURI{}, fmt.Errorf("path `%.256s` is not absolute", text)
	}
	return protocol.ParsePathURI(text)
}
