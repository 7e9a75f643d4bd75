// Package contracttest compares code with the contract ([contract.Contract]). [Cases] has documents for a
// record: complete ones, and ones that are wrong or right in one place. [Valid] judges a document
// by the JSON Schema that is published, a [Conversation] judges the messages of a connection, and [Asks] those
// of a client.
//
// It is for tests and for the conformance suite, because the validator is nothing that a product needs.
package contracttest
