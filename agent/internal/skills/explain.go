package skills

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/discovery/layout"
)

// Bounds of what is said of files that are passed over.
const (
	maxDetails = 256
	maxDetail  = 512               // bytes
	maxLooked  = layout.MaxEntries // names, of the folders of plugins and of each location
)

// WithDetails adds the member details to an answer of Installed without a sandbox: a line for each
// file or folder that Installed passes over, with the reason. If there is such a line, warnLocations
// and warnMetadata are left out. Each call reads the files again, in its turn (Discovery.Details).
func (d *Discovery) WithDetails(ctx context.Context, owner string, answer Encoded) (Encoded, error) {
	if err := d.Details.Wait(ctx, owner, 1); err != nil {
		return nil, err
	}
	defer d.Details.Give(owner, 1)
	release, err := d.cfg.Hold(ctx, owner, discovery.MaxBundle)
	if err != nil {
		return nil, err
	}
	defer release()
	e := explanation{lines: []string{}, left: maxLooked}
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
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
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
type explanation struct {
	lines []string
	left  int // number of names that may still be looked at, in the cache or in one location
}

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
	for _, m := range e.list(ctx, folder) {
		market := path.Join(folder, m.Name())
		plugins := e.list(ctx, market)
		if len(plugins) > 0 && !known[market] {
			e.say(market, "no folder in it is a plugin by its name: a marketplace has letters, digits, - and _")
			continue
		}
		for _, p := range plugins {
			plugin := path.Join(market, p.Name())
			if len(e.list(ctx, plugin)) > 0 && !known[plugin] {
				e.say(plugin, "no folder in it is a version of a plugin; a link to a folder is none")
			}
		}
	}
}

// list returns what is in a folder, sorted, as far as more may be looked at. There is nothing in what
// is no folder, or cannot be read: the search has told of it.
func (e *explanation) list(ctx context.Context, folder string) []fs.DirEntry {
	if e.left <= 0 || len(e.lines) >= maxDetails || ctx.Err() != nil {
		return nil
	}
	f, err := os.OpenFile(folder, os.O_RDONLY|syscall.O_DIRECTORY, 0) // O_DIRECTORY, because open(2) of a fifo would wait
	if err != nil {
		return nil
	}
	defer f.Close()
	entries, _ := f.ReadDir(e.left)
	e.left -= len(entries)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries
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
	e.left = maxLooked
	e.links(ctx, l.Path, layout.MaxDepth)
}

// links looks for links with the name of a skill in a folder, and in those below it down to a depth.
func (e *explanation) links(ctx context.Context, folder string, depth int) {
	for _, entry := range e.list(ctx, folder) {
		switch at := path.Join(folder, entry.Name()); {
		case entry.IsDir() && depth > 0:
			e.links(ctx, at, depth-1)
		case entry.Type() == fs.ModeSymlink && entry.Name() == layout.SkillFile:
			e.say(at, "no skill, because it is a link: only a folder may be one")
		}
	}
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
