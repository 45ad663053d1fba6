#!/bin/sh
# Generates the stubs and builds and tests the client against Debian's Go packages: build.sh FOLDER leaves FOLDER/lpc-retain.
# Wants golang-go, golang-google-grpc-dev, golang-google-protobuf-dev, protobuf-compiler, protoc-gen-go and protoc-gen-go-grpc.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/src/learnedprefixcache/lpcv1"
folder=$(cd "$1" && pwd)
cp -r "$here/lpc" "$here/cmd" "$folder/src/learnedprefixcache/"
module=Mlpc/v1/predictor.proto=learnedprefixcache/lpcv1
protoc -I "$here/../../proto" --go_out="$folder/src" --go_opt=$module --go-grpc_out="$folder/src" --go-grpc_opt=$module lpc/v1/predictor.proto
export GO111MODULE=off GOFLAGS= GOPATH="$folder:/usr/share/gocode"
cd "$folder/src/learnedprefixcache"
test -z "$(gofmt -l lpc cmd)" || { gofmt -d lpc cmd; exit 1; }
go vet ./lpc ./cmd/...
go test ./lpc
go build -o "$folder/lpc-retain" ./cmd/lpc-retain
