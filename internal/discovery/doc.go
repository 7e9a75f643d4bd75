// Package discovery finds skills and plugins in folders, and what belongs to them:
// manifests, configurations of MCP servers and of connectors, metadata. It knows native
// paths, an [fsops.FS], and the formats of these files, nothing of requests and sandboxes.
//
// There are two levels:
//
//	Locations ── folders in which things are installed ──┐
//	                                                     ▼
//	Read ── one folder ──► Root: the files as they are ── Plugin, Skills ──► their meaning
//
// [Read] is one walk and some opens, bounded in entries, bytes and depth; whoever has an
// FS under a policy reads under that policy. What cannot be read becomes a [Warning] and
// never an error. [Root.Describe] says what the files mean that Read has found, see package
// describe.
//
// The rules are those of capabilities.md 2 and 3.
package discovery
