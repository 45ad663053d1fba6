// Command lpc-retain reads JSON lines on standard input and answers each with one on standard output: requests that are admitted
// and end, and blocks that were evicted. It is an example of how the package is used, and what its tests run.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"log"
	"os"
	"strings"

	"google.golang.org/grpc"

	"learnedprefixcache/lpc"
	"learnedprefixcache/lpcv1"
)

type line struct {
	Op, ID, Conversation, User, Prompt string
	Age, Price                         float64 // seconds; uses per second
	Hazards                            []float32
}

type reply struct {
	Answered  bool      // "end": the sidecar has answered
	Seconds   float64   // "end": the retain seconds
	Values    []float64 `json:",omitempty"` // "values": of a curve
	Connected bool
	Error     string `json:",omitempty"`
}

func main() {
	address := flag.String("address", "127.0.0.1:50051", "of the sidecar: host:port or unix:///path")
	file := flag.String("token-file", os.Getenv("LPC_PREDICTOR_TOKEN_FILE"), "with the token that the sidecar knows")
	flag.Parse()
	token := ""
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			log.Fatal(err)
		}
		token = strings.TrimSpace(string(text))
	}
	client, err := lpc.Dial(*address, token, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	var retainer lpc.Retainer
	answers := map[string]lpc.Answer{} // of the requests that have ended
	input, output := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	input.Buffer(nil, 1<<20)
	for input.Scan() {
		var l line
		var r reply
		if err := json.Unmarshal(input.Bytes(), &l); err != nil {
			r.Error = err.Error()
		}
		switch l.Op {
		case "admit":
			client.Ask(l.ID, &lpcv1.Conversation{
				Input:          &lpcv1.Conversation_Prompt{Prompt: l.Prompt},
				ConversationId: l.Conversation,
				User:           l.User,
			})
		case "end":
			answers[l.ID], r.Answered = client.Take(l.ID)
			r.Seconds = retainer.Seconds(answers[l.ID])
		case "evicted":
			retainer.Evicted(answers[l.ID], l.Age)
		case "values":
			table := lpc.Values(l.Hazards)
			r.Values, r.Seconds = append(table, table.At(l.Age)), table.RetainSeconds(l.Price)
		}
		r.Connected = client.Connected()
		if output.Encode(r) != nil {
			return
		}
	}
}
