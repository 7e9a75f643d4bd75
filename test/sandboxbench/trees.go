package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A place is a file system with the trees that programs work on.
type place struct{ name, dir string }

func (p place) workspace() string { return p.dir + "/work" }

// trees are made by scripts: tar is 5,000 files of 1 KiB, git a repository with two branches that
// differ in 2,000 files, make 50 files in C, grep 20,000 files.
const trees = `set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
mkdir files work/repo work/c work/many
for d in $(seq 100); do mkdir files/$d; for f in $(seq 50); do head -c 1024 /dev/zero >files/$d/$f; done; done
tar cf work/files.tar files
rm -r files
cd work/repo
git init -q -b one .
for d in $(seq 40); do mkdir $d; for f in $(seq 50); do echo "one $d $f" >$d/$f; done; done
git add . && git commit -qm one
git checkout -q -b two
for d in $(seq 40); do for f in $(seq 50); do echo "two $d $f" >$d/$f; done; done
git commit -qam two && git checkout -q one && git gc -q
cd ../c
for f in $(seq 50); do { echo '#include <stdio.h>'; echo '#include <stdlib.h>'; echo '#include <string.h>'; for n in $(seq 40); do echo "int f${f}_$n(int a, char *b) { char c[64]; snprintf(c, sizeof c, \"%d %s\", a, b); return atoi(c) + (int)strlen(b) + $n; }"; done; } >$f.c; done
printf 'all: %s\n%%.o: %%.c\n\tgcc -O1 -c -o $@ $<\n' "$(seq -s ' ' -f '%g.o' 50)" >Makefile
cd ../many
for d in $(seq 200); do mkdir $d; for f in $(seq 100); do echo "file $f of $d" >$d/$f; done; done
`

// prepare makes the trees.
func (p place) prepare(ctx context.Context) error {
	if err := os.MkdirAll(p.workspace(), 0o755); err != nil {
		return err
	}
	if err := writePolicy(p.workspace()); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", trees)
	cmd.Dir = p.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("making the trees: %w\n%s", err, out)
	}
	return nil
}

// A program is measured from inside, without the start of the sandbox.
type program struct {
	name, script string
	again        string // makes the tree as it was
	readOnly     bool   // it writes nothing
}

var programs = []program{
	{"tar x, 5,000 files", "tar xf files.tar -C out", "rm -rf out; mkdir out", false},
	{"git checkout, 2,000 files, twice", "cd repo && git checkout -q two && git checkout -q one", "git -C repo reset -q --hard", false},
	{"make -j2, 50 files", "make -s -j2 -C c", "rm -f c/*.o", false},
	{"grep -r, 20,000 files", "grep -r nothing-like-it many || :", ":", true},
}

// reset makes the tree of a program as it was.
func (p place) reset(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = p.workspace()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return nil
}

// clear removes what the calls have left.
func (p place) clear() error {
	left, err := filepath.Glob(p.workspace() + "/call-*")
	for _, path := range left {
		if strings.HasPrefix(filepath.Base(path), "call-") {
			err = os.RemoveAll(path)
		}
	}
	return err
}
