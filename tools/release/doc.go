// Release makes a release of execagent: everything that users download, out of one commit.
//
//	make release VERSION=v0.1.0 KEY=cosign.key
//
// It is a list of steps (main.go), and each step makes one kind of artefact. What a step needs from an
// earlier one it reads from two folders, so that a single step can be repeated with -work and -steps:
//
//	WORK/source                  a clone of the commit, with VERSION as its only tag
//	WORK/stage/linux_amd64/agent what a user installs of one program for one target: bin, lib, share
//	DIST                         the artefacts
//
// A release has the same bytes wherever and whenever it is made, except for its signatures: programs are
// built without paths, and all times are the time of the commit.
//
// It is a module of its own, so that the libraries of packages, images and signatures are none of the
// product's. docs/dev/release.md is the page for those who make a release.
package main
