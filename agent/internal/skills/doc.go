// Package skills answers a client that asks which skills and plugins there are: in
// folders that it names, and installed for the user of the agent. Package discovery finds
// them; here are the words of the wire, the bounds of an answer, and the memory of what is
// installed (capabilities.md 2 and 3).
package skills
