// Package skills lists skills and plugins for a client: those in folders that the client
// names, and those installed for the user of the agent. Package discovery finds them; this
// package has the records of the wire, the bounds of an answer, and a memory of what is
// installed (capabilities.md 2 and 3).
package skills
