// Package discovery finds skills and plugins in folders, with their manifests, their metadata, and
// their configurations of MCP servers and connectors. It knows native paths, an [fsops.FS] and the
// formats of these files, but no requests and no sandboxes.
//
// There are two levels:
//
//	Locations ── folders in which things are installed ──┐
//	                                                     ▼
//	Read ── one folder ──► Root: the files as they are ── Plugin, Skills ──► their meaning
//
// [Read] does one walk and opens some files, with bounds on entries, bytes and depth. With an FS
// under a policy, it reads under that policy. A file that cannot be read becomes a [Warning], never
// an error. [Root.Describe] interprets the files that Read found, see package describe.
//
// The rules are those of capabilities.md 2 and 3.
package discovery
