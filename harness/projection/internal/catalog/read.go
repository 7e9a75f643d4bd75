package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/protocol"
)

const (
	// maxPage is the size of a page of a text, in bytes. maxListed is the number of skills on a
	// page of the list.
	maxPage   = 64 << 10
	maxListed = 100
	// mainResource is the file with the instructions.
	mainResource = "SKILL.md"
)

// ReadRequest asks for a text of a skill. Its JSON form is the arguments of the tool skills.read.
type ReadRequest struct {
	Package string `json:"package"`
	// Resource names a file of the skill: by its path in the package, or by a name that begins with
	// the package; "": the instructions.
	Resource string `json:"resource,omitempty"`
	// Cursor is the NextCursor of the page before; "": the first page.
	Cursor string `json:"cursor,omitempty"`
}

// Page is a part of a text.
type Page struct {
	Resource string `json:"resource"`
	Contents string `json:"contents"`
	// SkillRoot is the folder of a skill in a selected root. An installed skill has Installations
	// instead, because it may be in several environments.
	SkillRoot     string         `json:"skill_root,omitempty"`
	Installations []Installation `json:"installations,omitempty"`
	NextCursor    *string        `json:"next_cursor"`
}

// Installation is a place where a skill is installed.
type Installation struct {
	EnvironmentID string `json:"environment_id"`
	SkillRoot     string `json:"skill_root"`
}

// UnknownError says that there is no such skill in the step.
type UnknownError struct{ Package string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("there is no skill package %.256q", e.Package)
}

var (
	errCursor   = errors.New("the cursor is of no page")
	errNotText  = errors.New("the resource is not UTF-8 text")
	errResource = errors.New("the resource is not in the package")
)

// Read returns a page of a text. Instructions that discovery has read are returned as they were
// then. All other texts are read now.
func (l *List) Read(ctx context.Context, r ReadRequest) (*Page, error) {
	s := l.packages[strings.TrimSuffix(r.Package, "/")]
	if s == nil {
		return nil, &UnknownError{r.Package}
	}
	resource, err := s.resource(r.Resource)
	if err != nil {
		return nil, err
	}
	at, err := cursor(r.Cursor)
	if err != nil {
		return nil, err
	}
	place := s.installed[0]
	page := &Page{Resource: locator(s.Authority, path.Join(place.folder, resource))}
	if s.selected {
		page.SkillRoot = place.folder
	} else {
		for _, i := range s.installed {
			page.Installations = append(page.Installations, Installation{i.environment, i.folder})
		}
	}
	var text []byte
	if place.instructions != nil && resource == mainResource {
		whole := *place.instructions
		if at > 0 && at >= int64(len(whole)) {
			return nil, errCursor
		}
		text = []byte(whole[at:][:min(len(whole)-int(at), maxPage+1)])
	} else if text, err = l.block(ctx, &place, resource, at); err != nil {
		return nil, err
	}
	if len(text) > maxPage {
		text = text[:maxPage]
		for !utf8.Valid(text) && len(text) > maxPage-utf8.UTFMax {
			text = text[:len(text)-1] // the last character continues on the next page
		}
		page.NextCursor = new(strconv.FormatInt(at+int64(len(text)), 10))
	}
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return nil, errNotText
	}
	page.Contents = string(text)
	return page, nil
}

// block reads a page of a file, and a byte more if there is one.
func (l *List) block(ctx context.Context, place *installation, resource string, at int64) ([]byte, error) {
	var sandbox *protocol.Sandbox
	if l.cfg.Sandbox != nil {
		sandbox = l.cfg.Sandbox(place.environment)
	}
	f, err := place.client.FS(sandbox).Open(ctx, path.Join(place.folder, resource), protocol.OpenRead)
	if err != nil {
		return nil, err
	}
	text := make([]byte, maxPage+1)
	n, err := f.ReadAtContext(ctx, text, at)
	if err == io.EOF {
		err = nil
		if n == 0 && at > 0 {
			err = errCursor
		}
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	return text[:n], err
}

// resource returns the path of a resource in the package.
func (s *Skill) resource(name string) (string, error) {
	if name == "" {
		return mainResource, nil
	}
	for _, base := range []string{s.Package, s.short} {
		if rest, ok := strings.CutPrefix(name, base+"/"); ok {
			plain, err := url.PathUnescape(rest)
			if err != nil {
				return "", errResource
			}
			name = plain
			break
		}
	}
	clean := path.Clean(name)
	if path.IsAbs(name) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsRune(name, 0) {
		return "", errResource
	}
	return clean, nil
}

func cursor(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil || at < 0 {
		return 0, errCursor
	}
	return at, nil
}

// ListRequest asks for skills. Its JSON form is the arguments of the tool skills.list.
type ListRequest struct {
	// Authority selects the skills of one root or plugin; nil: all skills.
	Authority *Authority `json:"authority,omitempty"`
	Cursor    string     `json:"cursor,omitempty"`
}

// Authority is the source of skills.
type Authority struct {
	Kind string `json:"kind"` // always "executor"
	ID   string `json:"id"`
}

// Listed is a part of the list of skills.
type Listed struct {
	Skills     []Entry  `json:"skills"`
	Warnings   []string `json:"warnings"`
	NextCursor *string  `json:"next_cursor"`
}

// Entry is a skill of the list.
type Entry struct {
	Authority    Authority `json:"authority"`
	Package      string    `json:"package"`
	Name         string    `json:"name"`
	Description  string    `json:"description"`
	MainResource string    `json:"main_resource"`
}

// List lists skills, including hidden ones.
func (l *List) List(r ListRequest) (*Listed, error) {
	at, err := cursor(r.Cursor)
	if err != nil {
		return nil, err
	}
	out := &Listed{Skills: []Entry{}, Warnings: append([]string{}, l.warnings...)}
	if r.Authority != nil && r.Authority.Kind != kindExecutor {
		return out, nil
	}
	n := int64(0)
	for _, s := range l.skills {
		if r.Authority != nil && s.Authority != r.Authority.ID {
			continue
		}
		if n++; n <= at {
			continue
		}
		if len(out.Skills) == maxListed {
			out.NextCursor = new(strconv.FormatInt(n-1, 10))
			break
		}
		out.Skills = append(out.Skills, Entry{
			Authority: Authority{kindExecutor, s.Authority}, Package: s.Package, Name: line(s.Name), Description: line(s.Description),
			MainResource: s.Package + "/" + mainResource,
		})
	}
	return out, nil
}

const kindExecutor = "executor"
