package execpolicy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/execpolicy/rulefile"
	"github.com/execagent/execagent/internal/paths"
)

// Limits for the rules of an operator and of a client.
const (
	maxFiles       = 256
	maxFileBytes   = 1 << 20
	maxRules       = 20_000
	maxClientBytes = 256 << 10 // all files of a client together
	maxClientRules = 1_000
)

// ruleFiles is the suffix of the names of files with rules.
const ruleFiles = ".rules"

// OperatorBounds returns the bounds for the files of an operator.
func OperatorBounds() rulefile.Bounds {
	return rulefile.Bounds{FileBytes: maxFileBytes, Rules: maxRules}
}

// Load reads the rules in folders, the milder layer first. It reads the files whose names end in
// .rules, in the order of their names. All rules add up: no folder can take back a prohibition of
// another folder. Load fails if one file cannot be read, is not a regular file, or has an error.
// The error names the file and the line.
func Load(folders ...string) (*rule.Set, error) {
	all := &rule.Set{}
	files := 0
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(folder)
		if err != nil {
			return nil, err
		}
		if err := unshared(folder, info); err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if !strings.HasSuffix(entry.Name(), ruleFiles) {
				continue
			}
			name := filepath.Join(folder, entry.Name())
			if !entry.Type().IsRegular() { // skipping the file could allow a command that the file forbids
				return nil, fmt.Errorf("%s is not a regular file: put a copy of its target there, or give it another name", name)
			}
			if files++; files > maxFiles {
				return nil, fmt.Errorf("%s: more than %d files with rules", folder, maxFiles)
			}
			text, err := readRegular(name)
			if err != nil {
				return nil, err
			}
			rules, err := rulefile.Parse(all, name, text, OperatorBounds())
			if errors.Is(err, rulefile.ErrNotText) {
				return nil, &fs.PathError{Op: "read", Path: name, Err: err}
			}
			if err != nil {
				return nil, err
			}
			all.Append(rules)
		}
	}
	return all, nil
}

// A ClientFile is a file of rules that a client sends.
type ClientFile struct{ Name, Text string }

// ofClient is the [rule.Rule.Origin] of all rules from clients.
const ofClient = "client"

// ParseClient returns the rules of a client.
func ParseClient(files []ClientFile) (*rule.Set, error) {
	all, left := &rule.Set{}, maxClientBytes
	if len(files) > maxFiles {
		return nil, fmt.Errorf("%d files of rules, but at most %d are allowed", len(files), maxFiles)
	}
	for _, f := range files {
		rules, err := rulefile.Parse(all, f.Name, []byte(f.Text), rulefile.Bounds{FileBytes: left, Rules: maxClientRules})
		if err != nil {
			return nil, fmt.Errorf("rules of the client: %w", err)
		}
		for _, r := range rules.Rules() {
			r.Origin = ofClient // a client chooses the names of its files, and could choose a name of an operator's file
		}
		left -= len(f.Text)
		all.Append(rules)
	}
	return all, nil
}

// readRegular reads a regular file. It refuses a file that everybody can write.
func readRegular(name string) ([]byte, error) {
	f, info, err := paths.OpenRegular(name, syscall.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unshared(name, info); err != nil {
		return nil, err
	}
	return paths.ReadAll(f, maxFileBytes)
}

// everybodyWrites is the mode bit that lets everybody write.
const everybodyWrites fs.FileMode = 0o002

// unshared returns an error for a file or folder that everybody can change.
func unshared(name string, info fs.FileInfo) error {
	if info.Mode().Perm()&everybodyWrites != 0 {
		return fmt.Errorf("%s is refused: it has mode %04o, so everybody can change it (run chmod o-w)", name, info.Mode().Perm())
	}
	return nil
}
