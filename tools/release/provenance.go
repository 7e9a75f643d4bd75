package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// attest writes and signs the provenance of SLSA 1.0: it names the source, the build and the builder of every artefact.
func attest(_ context.Context, r *release) error {
	if r.Signer == nil {
		return nil
	}
	statement, err := r.provenance()
	if err != nil {
		return err
	}
	envelope, err := r.Signer.envelope("application/vnd.in-toto+json", statement)
	if err != nil {
		return err
	}
	line, err := lineOf(protojson.Marshal(envelope))
	if err != nil {
		return err
	}
	bundle, err := r.Signer.bundle(&bundlepb.Bundle{Content: &bundlepb.Bundle_DsseEnvelope{DsseEnvelope: envelope}})
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(r.Artefact("provenance.intoto.jsonl"), line),
		writeFile(r.Artefact("provenance.bundle"), bundle))
}

// provenance is the statement about the files that the sums list.
func (r *release) provenance() ([]byte, error) {
	sums, err := os.ReadFile(r.Artefact(sumsFile))
	if err != nil {
		return nil, err
	}
	var subjects []*intoto.ResourceDescriptor
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		subjects = append(subjects, &intoto.ResourceDescriptor{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	parameters, err := structpb.NewStruct(map[string]any{"repository": repositoryURL, "ref": "refs/tags/" + r.Tag})
	if err != nil {
		return nil, err
	}
	environment := map[string]any{}
	for _, variable := range r.fixed {
		name, value, _ := strings.Cut(variable, "=")
		environment[name] = value
	}
	fixed, err := structpb.NewStruct(map[string]any{"environment": environment})
	if err != nil {
		return nil, err
	}
	predicate := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType:          repositoryURL + "/blob/" + r.Tag + "/docs/dev/release.md",
			ExternalParameters: parameters,
			InternalParameters: fixed,
			ResolvedDependencies: []*intoto.ResourceDescriptor{
				{Uri: "git+" + repositoryURL + "@refs/tags/" + r.Tag, Digest: map[string]string{"gitCommit": r.Commit}},
			},
		},
		RunDetails: &provenance.RunDetails{
			Builder:  &provenance.Builder{Id: r.Builder},
			Metadata: &provenance.BuildMetadata{StartedOn: timestamppb.New(r.Started), FinishedOn: timestamppb.New(time.Now())},
		},
	}
	if err := predicate.Validate(); err != nil {
		return nil, err
	}
	data, err := protojson.Marshal(predicate)
	if err != nil {
		return nil, err
	}
	asStruct := &structpb.Struct{}
	if err := protojson.Unmarshal(data, asStruct); err != nil {
		return nil, err
	}
	statement := &intoto.Statement{
		Type: intoto.StatementTypeUri, Subject: subjects, PredicateType: "https://slsa.dev/provenance/v1", Predicate: asStruct,
	}
	if err := statement.Validate(); err != nil {
		return nil, err
	}
	return lineOf(protojson.Marshal(statement))
}
