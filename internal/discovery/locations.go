package discovery

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/strictjson"
)

// Bounds of locations. The bound of their number is part of the interface.
const (
	// maxLocations is the number of locations that are read, in their order.
	maxLocations = 512

	maxCacheNames  = 20_000 // entries read in the folders of installed plugins, all together
	maxInstallFile = 16 << 10
	maxRemoteID    = 1024 // bytes
)

// IDs of the locations of skills that belong to no plugin.
const (
	codexHomeSkills = "codex-home-skills"
	userAgentSkills = "user-agent-skills"
	systemSkills    = "system-skills"
)

// Places are the folders in which locations are searched. An empty path means that there is no such
// folder.
type Places struct {
	CodexHome, Home string
	// System is the folder of skills for all users.
	System string
}

// SystemFolder is the usual [Places.System].
const SystemFolder = "/etc/codex/skills"

// Plugins returns the folder of installed plugins, or "" if there can be none.
func (p Places) Plugins() string { return below(p.CodexHome, "plugins/cache") }

// Skills returns the folders of skills with their IDs, in order.
func (p Places) Skills() []Location {
	all := []Location{
		{ID: codexHomeSkills, Path: below(p.CodexHome, "skills")},
		{ID: userAgentSkills, Path: below(p.Home, ".agents/skills")},
		{ID: systemSkills, Path: p.System},
	}
	return slices.DeleteFunc(all, func(l Location) bool { return l.Path == "" })
}

func below(folder, name string) string {
	if folder == "" {
		return ""
	}
	return path.Join(folder, name)
}

// A Location is a folder in which a plugin or skills may be installed.
type Location struct {
	// ID is the ID of a plugin, plugin@marketplace, or one of the IDs of skills.
	ID   string
	Path string
	// Version is the version of a plugin; "" for skills.
	Version  string
	RemoteID string // ID of a plugin at a remote service; "" if it has none
}

// Locations lists the locations in their order: plugins by their IDs, then skills. Folders of
// skills need not exist. incomplete says that a folder or file could not be read, or that there are
// too many locations.
func (p Places) Locations() (all []Location, incomplete bool) {
	c := cache{left: maxCacheNames}
	if folder := p.Plugins(); folder != "" {
		c.list(folder)
	}
	all = append(c.found, p.Skills()...)
	if len(all) > maxLocations {
		all, c.incomplete = all[:maxLocations], true
	}
	return all, c.incomplete
}

// isMarketplace, isPlugin and isVersion report whether a name of a folder is valid. Other folders
// are skipped.
func isMarketplace(name string) bool { return hasOnly(name, "_-") }

func isPlugin(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if !hasOnly(part, "_-") {
			return false
		}
	}
	return true
}

func isVersion(name string) bool { return hasOnly(name, "._+-") && name != "." && name != ".." }

// hasOnly reports whether a name has only ASCII letters, digits and the marks, and is not empty.
func hasOnly(name, marks string) bool {
	for i := range len(name) {
		c := name[i]
		if !('a' <= c|0x20 && c|0x20 <= 'z') && !isDigit(c) && strings.IndexByte(marks, c) < 0 {
			return false
		}
	}
	return name != ""
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// cache lists the folders MARKETPLACE/PLUGIN/VERSION.
type cache struct {
	left       int // number of names that may still be read
	found      []Location
	incomplete bool
}

func (c *cache) list(folder string) {
	for _, marketplace := range c.names(folder, isMarketplace) {
		market := path.Join(folder, marketplace.Name())
		for _, plugin := range c.names(market, isPlugin) {
			at := path.Join(market, plugin.Name())
			var versions []string
			for _, version := range c.names(at, isVersion) {
				// A symbolic link does not count as a version, but links above it are followed.
				if version.IsDir() {
					versions = append(versions, version.Name())
				}
			}
			if len(versions) == 0 {
				continue
			}
			active := activeVersion(versions)
			c.found = append(c.found, Location{
				ID: plugin.Name() + "@" + marketplace.Name(), Path: path.Join(at, active), Version: active, RemoteID: c.remoteID(at),
			})
		}
	}
	sort.Slice(c.found, func(i, j int) bool { return c.found[i].ID < c.found[j].ID })
}

// names returns the folders and symbolic links in a folder whose names satisfy like, sorted. A
// missing folder, or a file that is not a folder, has none.
func (c *cache) names(folder string, like func(string) bool) (all []fs.DirEntry) {
	f, err := os.OpenFile(folder, os.O_RDONLY|syscall.O_DIRECTORY, 0) // O_DIRECTORY, because a link may lead to a fifo, on which open(2) would wait
	if err == nil {
		defer f.Close()
	}
	for err == nil {
		var some []fs.DirEntry
		some, err = f.ReadDir(min(c.left+1, 256))
		if c.left -= len(some); c.left < 0 {
			c.incomplete = true
			break
		}
		for _, entry := range some {
			switch kind := entry.Type(); {
			case !utf8.ValidString(entry.Name()):
				c.incomplete = true
			case (kind.IsDir() || kind&fs.ModeSymlink != 0) && like(entry.Name()):
				all = append(all, entry)
			}
		}
	}
	if err != nil && err != io.EOF && !errors.Is(err, fs.ErrNotExist) && !isNoDirectory(folder) {
		c.incomplete = true
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

func isNoDirectory(folder string) bool {
	info, err := os.Stat(folder)
	return err == nil && !info.IsDir()
}

// installed is the content of the file that has the ID of a plugin at a remote service.
type installed struct{ id string }

func (i *installed) UnmarshalObject(o *strictjson.Object) {
	if version := o.Uint64("schema_version"); version != 1 {
		o.Fail("schema_version", "is %d, must be 1", version)
	}
	i.id = strings.TrimSpace(o.String("remote_plugin_id"))
	if n := len(i.id); n == 0 || n > maxRemoteID {
		o.Fail("remote_plugin_id", "is %d bytes, must be 1 to %d", n, maxRemoteID)
	}
}

// remoteID reads the remote ID of a plugin.
func (c *cache) remoteID(plugin string) string {
	text, err := readHead(path.Join(plugin, ".codex-remote-plugin-install.json"), maxInstallFile)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	var i installed
	if err != nil || strictjson.Unmarshal(text, &i) != nil {
		c.incomplete = true
		return ""
	}
	return i.id
}

// activeVersion returns the version that is used.
func activeVersion(versions []string) string {
	if slices.Contains(versions, "local") {
		return "local"
	}
	return slices.MaxFunc(versions, compareVersions)
}

// compareVersions compares semantic versions. If one of the two is not a semantic version, it
// compares bytes.
func compareVersions(a, b string) int {
	va, oka := parseVersion(a)
	vb, okb := parseVersion(b)
	if !oka || !okb {
		return strings.Compare(a, b)
	}
	for i := range va.numbers {
		if c := cmp.Compare(va.numbers[i], vb.numbers[i]); c != 0 {
			return c
		}
	}
	switch {
	case va.pre == "" && vb.pre != "":
		return 1
	case va.pre != "" && vb.pre == "":
		return -1
	}
	return cmp.Or(compareIdentifiers(va.pre, vb.pre), compareIdentifiers(va.build, vb.build))
}

// version is a semantic version.
type version struct {
	numbers    [3]uint64
	pre, build string
}

func parseVersion(s string) (v version, ok bool) {
	s, build, hasBuild := strings.Cut(s, "+")
	s, pre, hasPre := strings.Cut(s, "-")
	if hasBuild && !areIdentifiers(build) || hasPre && !areIdentifiers(pre) {
		return v, false
	}
	numbers := strings.Split(s, ".")
	if len(numbers) != len(v.numbers) {
		return v, false
	}
	for i, number := range numbers {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || !isDigit(number[0]) || len(number) > 1 && number[0] == '0' {
			return v, false
		}
		v.numbers[i] = n
	}
	v.pre, v.build = pre, build
	return v, true
}

func areIdentifiers(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !hasOnly(part, "-") {
			return false
		}
	}
	return true
}

// compareIdentifiers compares dotted identifiers. Numbers are compared by value and come before
// words.
func compareIdentifiers(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		na, erra := strconv.ParseUint(as[i], 10, 64)
		nb, errb := strconv.ParseUint(bs[i], 10, 64)
		c := 0
		switch {
		case erra == nil && errb == nil:
			c = cmp.Compare(na, nb)
		case erra == nil:
			c = -1
		case errb == nil:
			c = 1
		default:
			c = strings.Compare(as[i], bs[i])
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}

// readHead reads a regular file. A file of more than most bytes is an error.
func readHead(name string, most int) ([]byte, error) {
	fd, err := fsops.Host{}.OpenRead(context.Background(), name, fsops.FollowLinks)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(text) > most {
		err = fs.ErrInvalid
	}
	return text, err
}
