package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sumsFile has a line for every artefact, as sha256sum -c reads it.
const sumsFile = "SHA256SUMS"

// Artefacts are the paths below dist of the files that sumsFile lists, in their order.
func (r *release) Artefacts() ([]string, error) {
	var names []string
	err := filepath.WalkDir(r.Dist, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(r.Dist, path)
		if err != nil {
			return err
		}
		if !madeFromSums(name) {
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	return names, err
}

func writeSums(_ context.Context, r *release) error {
	names, err := r.Artefacts()
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, name := range names {
		data, err := os.ReadFile(r.Artefact(name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), name)
	}
	return writeFile(r.Artefact(sumsFile), []byte(sums.String()))
}
