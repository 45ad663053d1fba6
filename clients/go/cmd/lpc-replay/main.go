// Command lpc-replay drives an engine's cache from JSON lines on standard input, and answers each with one on standard output.
// It is an example of how the package is used, and what its tests run.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"time"

	"google.golang.org/grpc"

	"learnedprefixcache/lpc"
	"learnedprefixcache/lpcv1"
)

type line struct {
	Op, ID, Conversation, Prompt string
	Blocks                       []string
	At, Lifetime, Seconds        float64
	Lifetimes                    []float64
	Credit                       []float32
	Count                        int
	CreditHits, LRUHits          []int
	Aborted                      bool
}

type reply struct {
	Hits      int
	Credit    float64
	Evicted   []string
	Lifetime  float64
	Connected bool
	Laid      int
	Trusted   []bool `json:",omitempty"`
	Error     string `json:",omitempty"`
}

func main() {
	address := flag.String("address", "127.0.0.1:50051", "of the sidecar: host:port or unix:///path")
	token := flag.String("token", os.Getenv("LPC_PREDICTOR_TOKEN"), "of its token file")
	blocks := flag.Int("blocks", 1000, "of the cache")
	guarded := flag.Bool("guard", true, "credit has to earn its place")
	flag.Parse()
	client := lpc.Dial(*address, *token, grpc.WithInsecure())
	defer client.Close()
	engine := lpc.NewEngine(client, *blocks, *guarded)
	input, output := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	input.Buffer(nil, 1<<20)
	for input.Scan() {
		var l line
		var r reply
		if err := json.Unmarshal(input.Bytes(), &l); err != nil {
			r.Error = err.Error()
		} else if err := act(engine, &l, &r); err != nil {
			r.Error = err.Error()
		}
		r.Lifetime, r.Connected = engine.Cache.Lifetime(), client.Connected()
		if output.Encode(r) != nil {
			return
		}
	}
}

func act(engine *lpc.Engine, l *line, r *reply) (err error) {
	switch l.Op {
	case "admit":
		r.Hits = engine.Admitted(l.ID, &lpcv1.Conversation{
			Input:          &lpcv1.Conversation_Prompt{Prompt: l.Prompt},
			ConversationId: l.Conversation,
		}, l.Blocks)
	case "end":
		r.Credit = engine.Ended(l.ID, l.Conversation, l.Blocks, !l.Aborted, l.At)
	case "step":
		r.Laid = engine.Step()
	case "evict":
		for i := 0; i < l.Count; i++ {
			hash, ok := engine.Cache.Evict(l.At)
			if !ok {
				break
			}
			r.Evicted = append(r.Evicted, hash)
		}
	case "interpolate":
		r.Credit, err = lpc.Grid(l.Lifetimes).At(l.Credit, l.Lifetime)
	case "guard":
		var guard lpc.Guard
		for i := range l.CreditHits {
			r.Trusted = append(r.Trusted, guard.Observe(l.CreditHits[i], l.LRUHits[i]))
		}
	case "sleep":
		time.Sleep(time.Duration(l.Seconds * float64(time.Second)))
	}
	return err
}
