// Package names is the name server of a command whose connections are transparent. It
// invents an address for every name, and knows the name again when the command connects
// to the address (transparent.md 3). Nobody is asked about a name, and nothing is looked
// up: the proxy judges and resolves the name when the command connects.
//
//	command ──► a question ──► Names.Answer ──► an invented address
//	command ──► connect(2) to that address ──► Names.Name ──► the name, which the proxy judges
//
// An address comes from a hash of the name with a secret of the agent. So a name has the
// same address in all commands of an agent, and no command can tell the names of others
// from its own addresses.
package names
