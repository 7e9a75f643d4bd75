package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	commonpb "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	dssepb "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"google.golang.org/protobuf/encoding/protojson"
)

// passwordVariable holds the password of the key. cosign reads the same variable.
const passwordVariable = "COSIGN_PASSWORD"

// publicKeyFile is what users verify a release with.
const publicKeyFile = "cosign.pub"

// A signer signs as cosign does with a key, without the log of transparency: its signatures are verified offline.
type signer struct {
	key    *ecdsa.PrivateKey
	public []byte // PEM
	hint   string // names the public key in bundles
}

// readSigner reads a key that cosign generate-key-pair has made.
func readSigner(path string) (*signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || (block.Type != "ENCRYPTED SIGSTORE PRIVATE KEY" && block.Type != "ENCRYPTED COSIGN PRIVATE KEY") {
		return nil, fmt.Errorf("%s is not a private key of cosign: make one with cosign generate-key-pair", path)
	}
	plain, err := encrypted.Decrypt(block.Bytes, []byte(os.Getenv(passwordVariable)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: is the password in %s?", path, err, passwordVariable)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(plain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%s holds a %T, and not a key of the curve P-256, as cosign generate-key-pair makes", path, parsed)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	return &signer{
		key:    key,
		public: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
		hint:   base64.StdEncoding.EncodeToString(sum[:]),
	}, nil
}

// sign returns the signature of data, and the SHA-256 of data, which is what is signed.
func (s *signer) sign(data []byte) (signature, digest []byte, err error) {
	sum := sha256.Sum256(data)
	signature, err = s.key.Sign(rand.Reader, sum[:], crypto.SHA256)
	return signature, sum[:], err
}

// bundle writes what cosign verify-blob --bundle reads.
func (s *signer) bundle(b *bundlepb.Bundle) ([]byte, error) {
	b.MediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	b.VerificationMaterial = &bundlepb.VerificationMaterial{
		Content: &bundlepb.VerificationMaterial_PublicKey{PublicKey: &commonpb.PublicKeyIdentifier{Hint: s.hint}},
	}
	return lineOf(protojson.Marshal(b))
}

// envelope signs a payload of a type, in an envelope of DSSE. It names no key, as cosign's own envelopes: a
// verifier skips a signature whose name of the key is not its own name for that key.
func (s *signer) envelope(payloadType string, payload []byte) (*dssepb.Envelope, error) {
	signature, _, err := s.sign(dsse.PAE(payloadType, payload))
	if err != nil {
		return nil, err
	}
	return &dssepb.Envelope{
		Payload: payload, PayloadType: payloadType,
		Signatures: []*dssepb.Signature{{Sig: signature}},
	}, nil
}

// lineOf is JSON on one line, without the spaces that protojson puts in at random.
func lineOf(data []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, data); err != nil {
		return nil, err
	}
	line.WriteByte('\n')
	return line.Bytes(), nil
}

// signSums signs the sums, and thereby every artefact.
func signSums(_ context.Context, r *release) error {
	if r.Signer == nil {
		return nil
	}
	sums, err := os.ReadFile(r.Artefact(sumsFile))
	if err != nil {
		return err
	}
	signature, digest, err := r.Signer.sign(sums)
	if err != nil {
		return err
	}
	bundle, err := r.Signer.bundle(&bundlepb.Bundle{Content: &bundlepb.Bundle_MessageSignature{MessageSignature: &commonpb.MessageSignature{
		MessageDigest: &commonpb.HashOutput{Algorithm: commonpb.HashAlgorithm_SHA2_256, Digest: digest},
		Signature:     signature,
	}}})
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(r.Artefact(sumsFile+".bundle"), bundle),
		writeFile(r.Artefact(sumsFile+".sig"), []byte(base64.StdEncoding.EncodeToString(signature)+"\n")),
		writeFile(r.Artefact(publicKeyFile), r.Signer.public))
}

// madeFromSums reports whether a file of the release is a signature, or what belongs to one. The sums do not
// list it, because it is made out of them.
func madeFromSums(name string) bool {
	return strings.HasPrefix(name, sumsFile) || strings.HasPrefix(name, "provenance.") || name == publicKeyFile
}
