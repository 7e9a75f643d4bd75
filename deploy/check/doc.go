// Package check tests the files in deploy. Nothing is applied to a cluster: the manifests are
// rendered as kubectl and helm would render them, and each object is decoded strictly into its type
// of the API.
package check
