# Lines of the pages that the API and the command line follow, with real ids. Run by command_line.rs.
set -euo pipefail
shopt -s expand_aliases
alias zwrm='"$WAKEFUL"'

created=$(curl -sS -f -X POST http://localhost:8080/v1/sandboxes \
-H "Content-Type: application/json" \
-d '{
"template": "python",
"mode": "ephemeral",
"timeout": "10m",
"size": "shared-cpu-2x",
"env": {
"OPENAI_API_KEY": "sk-..."
}
}')
id=$(grep -o 'sbx_[a-z2-7]*' <<<"$created" | head -n 1)
curl -sS -f -X POST http://localhost:8080/v1/sandboxes/$id/keepalive \
-H "Content-Type: application/json" \
-d '{"timeout": "30m"}' >/dev/null
curl -sS -f -X POST http://localhost:8080/v1/sandboxes/$id/execute \
-H "Content-Type: application/json" \
-d '{
"command": "python3 -c \"import sys; print(sys.version)\"",
"timeout": "30s",
"workdir": "/home/user",
"env": {"DEBUG": "1"}
}' > executed.json
echo 'print("hello")' > main.py
curl -sS -f -X PUT http://localhost:8080/v1/sandboxes/$id/files/home/user/main.py \
--data-binary @./main.py >/dev/null
curl -sS -f -X POST http://localhost:8080/v1/sandboxes/$id/execute -d '{"command": "python3 main.py > output.json"}' >/dev/null
curl -sS -f http://localhost:8080/v1/sandboxes/$id/files/home/user/output.json \
-o output.json
curl -sS -f "http://localhost:8080/v1/sandboxes/$id/files/home/user?list=true" > list.json
curl -sS -f -X DELETE http://localhost:8080/v1/sandboxes/$id

id=$(zwrm sandbox create --template python --timeout 10m)
zwrm sandbox keepalive $id --timeout 30m >/dev/null
zwrm sandbox exec $id -- python3 -c "print('hello')"
zwrm sandbox exec $id -- sudo sh -c 'mkdir /app; printf "#!/bin/sh\ntest \"\$1\" = test && test \"\$PWD\" = /app\n" > /usr/local/bin/make; chmod +x /usr/local/bin/make'
zwrm sandbox exec $id --timeout 60s --workdir /app -- make test
zwrm sandbox upload $id ./main.py /home/user/main.py >/dev/null
zwrm sandbox exec $id -- sh -c 'python3 main.py > output.json'
zwrm sandbox download $id /home/user/output.json ./again.json >/dev/null
cmp output.json again.json
zwrm sandbox destroy $id >/dev/null

id=$(zwrm sandbox create --template python --persistent --idle-timeout 10m)
zwrm sandbox suspend $id >/dev/null
zwrm sandbox wake $id >/dev/null
zwrm sandbox suspend $id >/dev/null
# This will wake the sandbox first, then execute the command
zwrm sandbox exec $id -- echo "I'm back!"
zwrm sandbox destroy $id >/dev/null
