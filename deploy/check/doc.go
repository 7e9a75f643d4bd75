// Package check tests what lies in deploy. Nothing is applied to a cluster: the manifests are
// rendered, as kubectl and helm would do it, and each object is decoded strictly into the type that
// the API has for it.
package check
