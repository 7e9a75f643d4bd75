package skills

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/discovery/layout"
)

// Bounds of what is said of files that are passed over.
const (
	maxDetails = 256
	maxDetail  = 512 // bytes
	maxLooked  = layout.MaxEntries
)

// WithDetails adds the member details to an answer of Installed without a sandbox: a line for each
// file or folder that Installed passes over, with the reason. If there is such a line, warnLocations
// and warnMetadata are left out. Each call looks at the files anew.
func (d *Discovery) WithDetails(ctx context.Context, answer Encoded) (Encoded, error) {
	e := explanation{lines: []string{}}
	locations, _ := d.places.Locations()
	if plugins := d.places.Plugins(); plugins != "" {
		e.cache(ctx, plugins, locations)
	}
	left := maxRead
	for _, l := range locations {
		found, err := read(ctx, fsops.Host{}, l.Path)
		if err != nil {
			return nil, err
		}
		if left -= found.Size(); left < 0 {
			e.say(l.Path, "is left out, because the folders before it have %d bytes together", maxRead)
			break
		}
		e.location(ctx, &l, found)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	text, err := json.Marshal(e.lines)
	if err != nil {
		return nil, err
	}
	before, warnings, err := answer.cutWarnings()
	if err != nil {
		return nil, err
	}
	if len(e.lines) > 0 {
		warnings = slices.DeleteFunc(warnings, func(w string) bool { return w == warnLocations || w == warnMetadata })
	}
	out := append(appendWarnings(before, warnings), `,"details":`...) // a copy of before, because others have the answer too
	return append(append(out, text...), '}'), nil
}

// explanation says why files are passed over.
type explanation struct{ lines []string }

func (e *explanation) say(file, format string, args ...any) {
	if len(e.lines) < maxDetails {
		line := file + ": " + fmt.Sprintf(format, args...)
		e.lines = append(e.lines, strings.ToValidUTF8(line[:min(len(line), maxDetail)], "\uFFFD"))
	}
}

// cache looks for folders of plugins that are none by their names, and for links that are not followed.
func (e *explanation) cache(ctx context.Context, folder string, locations []discovery.Location) {
	known := map[string]bool{}
	for _, l := range locations {
		for at := l.Path; len(at) > len(folder); at = path.Dir(at) {
			known[at] = true
		}
	}
	entries, _ := filepath.Glob(path.Join(escapeGlob(folder), "*"))
	for _, market := range entries {
		if ctx.Err() != nil {
			return
		}
		plugins, _ := filepath.Glob(path.Join(escapeGlob(market), "*"))
		if len(plugins) > 0 && !known[market] {
			e.say(market, "no folder in it is a plugin by its name: a marketplace has letters, digits, - and _")
			continue
		}
		for _, plugin := range plugins {
			versions, _ := filepath.Glob(path.Join(escapeGlob(plugin), "*"))
			if len(versions) > 0 && !known[plugin] {
				e.say(plugin, "no folder in it is a version of a plugin; a link to a folder is none")
			}
		}
	}
}

// escapeGlob makes a pattern that only matches the path itself.
func escapeGlob(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// location says what is passed over in one location.
func (e *explanation) location(ctx context.Context, l *discovery.Location, found *discovery.Root) {
	isPlugin := l.Version != ""
	if f := found.Failure; f != nil {
		if tells(f, fsops.Host{}) || isPlugin {
			e.trouble(f)
		}
		return
	}
	for i := range found.Warnings {
		e.trouble(&found.Warnings[i])
	}
	what := found.Describe(l.Path)
	switch {
	case !isPlugin:
	case found.Plugin == nil:
		e.say(l.Path, "no plugin, because it has no %s that can be read", strings.TrimPrefix(layout.Manifests(l.Path)[0], l.Path+"/"))
	case what.Manifest != nil:
		e.say(found.Plugin.Manifest.Path, "the plugin is passed over: %v", what.Manifest)
	case found.Missing:
		named := layout.Declare(l.Path, found.Plugin.Manifest.Contents)
		if named.NamesMCP && found.Plugin.MCP == nil {
			e.say(named.MCP, "mcpServers of the manifest names this file, and there is none that can be read")
		}
		if named.NamesApps && found.Plugin.Apps == nil {
			e.say(named.Apps, "apps of the manifest names this file, and there is none that can be read")
		}
	}
	for _, r := range what.Refused {
		e.say(r.Path, "no skill: %v", r.Err)
	}
	e.links(ctx, l.Path)
}

// links looks for links with the name of a skill.
func (e *explanation) links(ctx context.Context, root string) {
	looked := 0
	_ = filepath.WalkDir(root, func(at string, entry fs.DirEntry, err error) error {
		looked++
		switch {
		case looked > maxLooked || len(e.lines) >= maxDetails || ctx.Err() != nil:
			return filepath.SkipAll
		case err != nil:
			return nil // the search has told of it
		case entry.IsDir() && strings.Count(strings.TrimPrefix(at, root), "/") > layout.MaxDepth:
			return filepath.SkipDir
		case entry.Type() == fs.ModeSymlink && entry.Name() == layout.SkillFile:
			e.say(at, "no skill, because it is a link: only a folder may be one")
		}
		return nil
	})
}

// trouble says what a warning of discovery.Read says.
func (e *explanation) trouble(w *discovery.Warning) {
	switch w.Trouble {
	case discovery.NotDirectory:
		e.say(w.Path, "no folder")
	case discovery.Truncated:
		e.say(w.Path, "has too many files or folders, and not all were looked at")
	case discovery.TooLarge:
		e.say(w.Path, "has more than %d bytes", discovery.MaxFile)
	case discovery.NoRoom:
		e.say(w.Path, "is left out, because the files before it have %d bytes together", discovery.MaxBundle)
	case discovery.NotText:
		e.say(w.Path, "is not UTF-8")
	case discovery.NotDotSlash:
		e.say(w.Path, "%s is ignored, because its path does not begin with ./", w.Member)
	case discovery.Outside:
		e.say(w.Path, "%s is ignored, because its path leads out of the plugin", w.Member)
	default:
		e.say(w.Path, "cannot be read: %v", w.Err)
	}
}
