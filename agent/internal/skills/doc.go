// Package skills lists skills and plugins for a client: those in folders that the client names, and
// those installed for the user of the agent. Package discovery finds them. This package has the
// records of the protocol, the bounds of an answer, and a cache of the installed capabilities
// (capabilities.md 2 and 3).
package skills
