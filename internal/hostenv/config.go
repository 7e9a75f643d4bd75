package hostenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// maxCwd bounds ConfigQuery.Cwd, in bytes: PATH_MAX less the NUL at its end
// (path_resolution(7)).
const maxCwd = 4095

// maxConfigKeys bounds the keys of all paths of a ConfigQuery together, and maxConfigKeyBytes the
// bytes of those keys. Each key is looked up in every layer. Clients usually ask for a few keys.
const (
	maxConfigKeys     = 4096
	maxConfigKeyBytes = 1 << 20
)

// maxProjectConfig bounds the files of all project layers together, and
// maxRendered the texts of all layers in one ConfigStack, both in bytes.
const (
	maxProjectConfig = 4 << 20
	maxRendered      = 16 << 20
)

// ConfigQuery asks for parts of the configuration of this host.
type ConfigQuery struct {
	// Cwd is the directory whose project layers are used: absolute and clean, at most 4095 bytes. It
	// need not exist.
	Cwd string
	// ConfigPaths are paths of keys to select from each layer of configuration,
	// RequirementsPaths from each layer of requirements. Together they have at most
	// 4096 keys and 1 MiB.
	ConfigPaths, RequirementsPaths [][]string
	// Home is the home directory of the user. It may be empty if CodexHome is set.
	Home string
	// CodexHome is the content of CODEX_HOME, a directory that must exist. Empty means .codex in Home,
	// which need not exist.
	CodexHome string
	// SystemDir has the files of the administrator; empty means /etc/codex.
	SystemDir string
}

// ConfigResult is the answer to a ConfigQuery.
type ConfigResult struct {
	Home         string // ConfigQuery.Home, unchanged
	CodexHome    string // ConfigQuery.CodexHome with links resolved, or .codex in Home
	Hostname     string
	Config       ConfigStack
	Requirements ConfigStack
}

// ConfigStack holds the layers that have any of the selected keys, weakest first.
type ConfigStack struct {
	Layers []ConfigLayer
	// CloudInsertionIndex is the index in Layers at which the client inserts the layers that it gets
	// from its account server: after the administrator's layer, if there is one, and before all
	// others.
	CloudInsertionIndex int
}

// ConfigLayer is the selected part of one file.
type ConfigLayer struct {
	Source  string // kind of layer and its file, for people to read
	BaseDir string // directory of the file; relative paths in the file start there
	TOML    string // a document with only the selected keys
}

// The errors of a malformed query. The agent refuses these, and the
// syscall.ENAMETOOLONG of a Cwd that is too long, as invalid parameters, -32602. It
// answers all other errors of ReadConfig with -32603, as faults of this host.
var (
	ErrNoConfigPath    = errors.New("configPaths and requirementsPaths are both empty, want at least one path")
	ErrEmptyConfigPath = errors.New("a path of configPaths or requirementsPaths has no key, want at least one")
	ErrManyConfigKeys  = fmt.Errorf("configPaths and requirementsPaths have over %d keys or %d bytes", maxConfigKeys, maxConfigKeyBytes)
)

// ReadConfig returns the selected keys of every layer of configuration on this host (rpc.md 3.6).
// The layers of Config, weakest first:
//
//   - config.toml in SystemDir, the administrator's;
//   - config.toml in CodexHome, the user's;
//   - .codex/config.toml of each trusted directory from the root of the project down to Cwd;
//   - managed_config.toml in SystemDir, which overrides all others.
//
// The layers of Requirements are requirements.toml in SystemDir, and the requirements that
// managed_config.toml implies.
//
// A missing file is no layer. A file is an error if it is over 1 MiB, is not regular, cannot be
// read or is not TOML, even if nothing of it was selected. Otherwise a client could run without
// rules that their author believes to be in force. Project layers over 4 MiB together are an error
// too, and so is an answer over 16 MiB. ReadConfig checks ctx between files.
func ReadConfig(ctx context.Context, q ConfigQuery) (ConfigResult, error) {
	if err := q.check(); err != nil {
		return ConfigResult{}, err
	}
	codexHome, err := q.codexHome()
	if err != nil {
		return ConfigResult{}, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return ConfigResult{}, fmt.Errorf("reading the host name: %w", err)
	}
	files, err := readConfigFiles(ctx, q.systemDir(), codexHome, q.Cwd)
	if err != nil {
		return ConfigResult{}, err
	}
	result := ConfigResult{Home: q.Home, CodexHome: codexHome, Hostname: hostname}

	config, requirements := stackBuilder{left: maxRendered}, stackBuilder{left: maxRendered}
	config.add("system (%s)", files.system, q.ConfigPaths)
	config.stack.CloudInsertionIndex = len(config.stack.Layers)
	config.add("user (%s)", files.user, q.ConfigPaths)
	for _, f := range files.projects {
		if err := ctx.Err(); err != nil {
			return ConfigResult{}, err
		}
		config.add("project (%s)", f, q.ConfigPaths)
	}
	config.add("legacy managed_config.toml (%s)", files.managed, q.ConfigPaths)

	requirements.add("%s", files.requirements, q.RequirementsPaths)
	requirements.stack.CloudInsertionIndex = len(requirements.stack.Layers)
	implied, err := impliedRequirements(files.managed)
	if err != nil {
		return ConfigResult{}, err
	}
	requirements.add("%s", implied, q.RequirementsPaths)

	if err := errors.Join(config.err, requirements.err); err != nil {
		return ConfigResult{}, err
	}
	result.Config, result.Requirements = config.stack, requirements.stack
	return result, nil
}

func (q *ConfigQuery) check() error {
	if len(q.ConfigPaths)+len(q.RequirementsPaths) == 0 {
		return ErrNoConfigPath
	}
	keys, size := 0, 0
	for _, paths := range [][][]string{q.ConfigPaths, q.RequirementsPaths} {
		for _, p := range paths {
			if len(p) == 0 {
				return ErrEmptyConfigPath
			}
			for _, key := range p {
				keys++
				size += len(key)
			}
			if keys > maxConfigKeys || size > maxConfigKeyBytes {
				return ErrManyConfigKeys
			}
		}
	}
	if len(q.Cwd) > maxCwd {
		return fmt.Errorf("cwd of %d bytes: %w", len(q.Cwd), syscall.ENAMETOOLONG)
	}
	if !filepath.IsAbs(q.Cwd) {
		return fmt.Errorf("cwd %q is not absolute", q.Cwd)
	}
	return nil
}

func (q *ConfigQuery) systemDir() string {
	if q.SystemDir == "" {
		return "/etc/codex"
	}
	return q.SystemDir
}

func (q *ConfigQuery) codexHome() (string, error) {
	if q.CodexHome == "" {
		if q.Home == "" {
			return "", errors.New("no CODEX_HOME and no home directory")
		}
		return filepath.Join(q.Home, ".codex"), nil
	}
	abs, err := filepath.Abs(q.CodexHome)
	if err != nil {
		return "", fmt.Errorf("CODEX_HOME %q: %w", q.CodexHome, err)
	}
	dir, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", fmt.Errorf("CODEX_HOME: %w", err)
	}
	return dir, nil
}

// configFiles are the files of all layers; nil means that a file is missing.
type configFiles struct {
	system, user, managed, requirements *tomlFile
	projects                            []*tomlFile // root first
}

func readConfigFiles(ctx context.Context, systemDir, codexHome, cwd string) (configFiles, error) {
	var files configFiles
	for _, f := range []struct {
		file **tomlFile
		path string
	}{
		{&files.system, filepath.Join(systemDir, "config.toml")},
		{&files.user, filepath.Join(codexHome, "config.toml")},
		{&files.managed, filepath.Join(systemDir, "managed_config.toml")},
		{&files.requirements, filepath.Join(systemDir, "requirements.toml")},
	} {
		if err := ctx.Err(); err != nil {
			return configFiles{}, err
		}
		var err error
		if *f.file, err = readTOML(f.path); err != nil {
			return configFiles{}, err
		}
	}
	trust, err := newTrust(files.system, files.user, files.managed)
	if err != nil {
		return configFiles{}, err
	}
	dirs, err := trust.trustedDirs(ctx, cwd)
	if err != nil {
		return configFiles{}, err
	}
	size := 0
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return configFiles{}, err
		}
		dir = filepath.Join(dir, ".codex")
		if dir == codexHome {
			continue // this file is already the user's layer
		}
		file, err := readTOML(filepath.Join(dir, "config.toml"))
		if err != nil {
			return configFiles{}, err
		}
		if file == nil {
			continue
		}
		if size += file.size; size > maxProjectConfig {
			return configFiles{}, fmt.Errorf("%s: the project layers up to here are over %d bytes", file.path, maxProjectConfig)
		}
		for _, key := range notForProjects() {
			delete(file.tree, key)
		}
		files.projects = append(files.projects, file)
	}
	return files, nil
}

// notForProjects returns the keys that the file of a project cannot set. They would send the
// credentials of the user elsewhere or start programs in the user's name, and trust in a repository
// does not include this.
func notForProjects() []string {
	return []string{
		"model_provider", "model_providers", "openai_base_url", "chatgpt_base_url", "apps_mcp_product_sku",
		"experimental_realtime_ws_base_url", "experimental_realtime_webrtc_call_base_url",
		"profile", "profiles", "notify", "otel",
	}
}

// impliedRequirements converts managed_config.toml to keys of requirements.toml.
// managed_config.toml is the older way to restrict users.
func impliedRequirements(managed *tomlFile) (*tomlFile, error) {
	if managed == nil {
		return nil, nil
	}
	implied := &tomlFile{path: managed.path, tree: map[string]any{}}
	if v, ok := managed.tree["approval_policy"]; ok {
		implied.tree["allowed_approval_policies"] = []any{v}
	}
	switch v := managed.tree["sandbox_mode"]; v {
	case nil:
	case "read-only":
		implied.tree["allowed_sandbox_modes"] = []any{v}
	case "workspace-write", "danger-full-access":
		implied.tree["allowed_sandbox_modes"] = []any{"read-only", v}
	default:
		return nil, fmt.Errorf("%s: sandbox_mode %v, want read-only, workspace-write or danger-full-access", managed.path, v)
	}
	return implied, nil
}

// stackBuilder collects layers and keeps the first error.
type stackBuilder struct {
	stack ConfigStack
	left  int // bytes that are left for further layers
	err   error
}

// add appends a layer with the keys that paths select from file. If they select nothing, it appends
// no layer. source is a format for the path of the file.
func (b *stackBuilder) add(source string, file *tomlFile, paths [][]string) {
	if file == nil || b.err != nil {
		return
	}
	selected := map[string]any{}
	for _, p := range paths {
		selectKeys(selected, file.tree, p)
	}
	if len(selected) == 0 {
		return
	}
	text, err := renderTOML(selected, b.left)
	if err != nil {
		b.err = fmt.Errorf("%s: %w", file.path, err)
		return
	}
	b.left -= len(text)
	b.stack.Layers = append(b.stack.Layers, ConfigLayer{
		Source: fmt.Sprintf(source, file.path), BaseDir: filepath.Dir(file.path), TOML: text,
	})
}
