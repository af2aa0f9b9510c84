# The service behind the preview tests: HTTP, events and WebSockets with nothing but the standard library.
import base64, hashlib, json, os, struct, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = bytes(range(256)) * 1024
hits = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
        pass

    def reply(self, body, *headers):
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        global hits
        hits += 1
        path = self.path.split('?')[0]
        if path == '/headers':
            told = {'path': self.path, 'headers': [[k.lower(), v] for k, v in self.headers.items()]}
            self.reply(json.dumps(told).encode(), ('Set-Cookie', 'mine=1; Domain=localhost; Path=/'))
        elif path == '/count':
            self.reply(json.dumps({'pid': os.getpid(), 'hits': hits}).encode())
        elif path.startswith('/down/'):
            left = int(path[6:])
            self.send_response(200)
            self.send_header('Content-Length', str(left))
            self.end_headers()
            while left:
                left -= self.wfile.write(BLOCK[:left])
        elif path == '/events':
            self.send_response(200)
            self.send_header('Content-Type', 'text/event-stream')
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            for n in range(4):
                event = b'data: %d\n\n' % n
                self.wfile.write(b'%x\r\n%s\r\n' % (len(event), event))
                self.wfile.flush()
                time.sleep(1)
            self.wfile.write(b'0\r\n\r\n')
        elif path.startswith('/slow/'):
            time.sleep(float(path[6:]))
            self.reply(b'at last')
        elif path == '/garbage':
            self.wfile.write(b'what is HTTP?\r\n\r\n')
            self.close_connection = True
        elif path == '/ws':
            self.websocket()
        else:
            self.reply(b'hello from inside')

    def do_POST(self):
        digest, total = hashlib.sha256(), 0
        for piece in self.body():
            digest.update(piece)
            total += len(piece)
        self.reply(json.dumps({'sha256': digest.hexdigest(), 'length': total}).encode())

    def body(self):
        if 'chunked' in self.headers.get('Transfer-Encoding', ''):
            while length := int(self.rfile.readline().split(b';')[0], 16):
                yield self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get('Content-Length', 0))
        while left:
            piece = self.rfile.read(min(left, 65536))
            left -= len(piece)
            yield piece

    def websocket(self):
        key = self.headers['Sec-WebSocket-Key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
        self.send_response(101)
        self.send_header('Upgrade', 'websocket')
        self.send_header('Connection', 'Upgrade')
        self.send_header('Sec-WebSocket-Accept', base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        lock, said = threading.Lock(), 0

        def send(opcode, payload):
            head = bytes([0x80 | opcode])
            if len(payload) < 126:
                head += bytes([len(payload)])
            elif len(payload) < 65536:
                head += struct.pack('>BH', 126, len(payload))
            else:
                head += struct.pack('>BQ', 127, len(payload))
            with lock:
                self.wfile.write(head + payload)

        def push(seconds):
            time.sleep(seconds)
            send(1, b'pushed')

        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            opcode, length = head[0] & 15, head[1] & 127
            if length == 126:
                length, = struct.unpack('>H', self.rfile.read(2))
            elif length == 127:
                length, = struct.unpack('>Q', self.rfile.read(8))
            mask = self.rfile.read(4)
            masked = self.rfile.read(length)
            payload = bytes(b ^ mask[i % 4] for i, b in enumerate(masked))
            if opcode == 8:
                send(8, payload)
                return
            if opcode == 9:
                send(10, b'inside:' + payload)
                continue
            if opcode > 2:
                continue
            said += 1
            if payload.startswith(b'push '):
                threading.Thread(target=push, args=(float(payload[5:]),), daemon=True).start()
            else:
                send(opcode, b'%d:' % said + payload)


server = ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
server.daemon_threads = True
server.serve_forever()
